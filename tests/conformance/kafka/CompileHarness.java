import java.io.File;
import org.codehaus.commons.compiler.util.resource.DirectoryResourceCreator;
import org.codehaus.janino.ClassLoaderIClassLoader;
import org.codehaus.janino.Compiler;

/**
 * Compiles the harness into class files: a folder for them, then the sources.
 *
 * Janino's own command line runs what it compiles in a class loader of its own, and Kafka's
 * package-private classes are open only to classes of the same loader.
 */
public class CompileHarness {
    public static void main(String[] arguments) throws Exception {
        File[] sources = new File[arguments.length - 1];
        for (int i = 1; i < arguments.length; i++) {
            sources[i - 1] = new File(arguments[i]);
        }
        Compiler compiler = new Compiler();
        compiler.setIClassLoader(
            new ClassLoaderIClassLoader(Thread.currentThread().getContextClassLoader()));
        compiler.setClassFileCreator(new DirectoryResourceCreator(new File(arguments[0])));
        compiler.compile(sources);
    }
}
