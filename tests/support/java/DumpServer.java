import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import org.apache.kafka.tools.DumpLogSegments;

/**
 * Kafka's DumpLogSegments in one JVM for many questions: a line names the segments, the answer is
 * the number of its bytes on a line and what the tool printed. What ends the tool ends this.
 */
public class DumpServer {
    public static void main(String[] arguments) throws Exception {
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        PrintStream answers = System.out;
        String segments;
        while ((segments = asked.readLine()) != null) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            System.setOut(new PrintStream(printed, true, "UTF-8"));
            DumpLogSegments.main(new String[] {"--offsets-decoder", "--files", segments});
            System.out.flush();
            answers.println(printed.size());
            printed.writeTo(answers);
            answers.flush();
        }
    }
}
