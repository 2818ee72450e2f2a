import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Arrays;

/**
 * Kafka's command-line classes in one JVM for many questions: a line has a class and its arguments
 * between tabs, the answer is the number of its bytes on a line and what the tool printed. What
 * ends the tool ends this.
 */
public class ToolServer {
    public static void main(String[] unused) throws Exception {
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        PrintStream answers = System.out;
        String line;
        while ((line = asked.readLine()) != null) {
            String[] words = line.split("\t");
            Object arguments = Arrays.copyOfRange(words, 1, words.length);
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            System.setOut(new PrintStream(printed, true, "UTF-8"));
            Class.forName(words[0])
                .getMethod("main", new Class[] {String[].class})
                .invoke(null, new Object[] {arguments});
            System.out.flush();
            answers.println(printed.size());
            printed.writeTo(answers);
            answers.flush();
        }
    }
}
