import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;

import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's command line tools, one JVM for many commands.
 *
 * <p>Each line of stdin is a command: the tool's class and its arguments, with tabs between. The answer on stdout is
 * {@code exit CODE COUNT}, and then COUNT lines that the tool printed, to stdout or stderr.
 */
public final class Tools {
    private Tools() {}

    /** Where a tool would end the JVM; some catch it, and what they say and do then does not count. */
    private static final class Ended extends RuntimeException {
        private static final long serialVersionUID = 1;
        private final int code;
        private final String said;

        private Ended(int code, String said) {
            this.code = code;
            this.said = said;
        }
    }

    private static Ended ended;

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream answers = System.out;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            PrintStream out = new PrintStream(said, true, StandardCharsets.UTF_8);
            System.setOut(out);
            System.setErr(out);
            ended = null;
            Exit.setExitProcedure((code, message) -> {
                if (ended == null) {
                    ended = new Ended(code, said.toString(StandardCharsets.UTF_8));
                }
                throw ended;
            });
            run(line.split("\t"));
            int code = ended == null ? 0 : ended.code;
            List<String> lines = (ended == null ? said.toString(StandardCharsets.UTF_8) : ended.said).lines().toList();
            answers.println("exit " + code + " " + lines.size());
            lines.forEach(answers::println);
            answers.flush();
        }
    }

    private static void run(String[] words) throws ReflectiveOperationException {
        Object arguments = Arrays.copyOfRange(words, 1, words.length);
        try {
            Class.forName(words[0]).getMethod("main", String[].class).invoke(null, arguments);
        } catch (InvocationTargetException thrown) {
            if (thrown.getCause() != ended) {
                throw thrown;
            }
        }
    }
}
