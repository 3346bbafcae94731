package halfmoon;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.ParameterContext;
import org.junit.jupiter.api.extension.ParameterResolver;

/**
 * A JUnit 5 extension: one name server and one broker for all tests of a run, injected as a parameter of test methods.
 *
 * <p>They run as {@code halfmoon serve --ephemeral}, on free ports, in a temporary directory. They stop at the end of the run, and
 * when the JVM dies, because their standard input ends then. The command is {@code halfmoon}, or the value of {@code HALFMOON}.
 */
public final class Halfmoon implements ParameterResolver {

    /** Addresses of the servers. */
    public record Servers(String nameserver, String broker) {}

    @Override
    public boolean supportsParameter(ParameterContext parameter, ExtensionContext context) {
        return parameter.getParameter().getType() == Servers.class;
    }

    @Override
    public Object resolveParameter(ParameterContext parameter, ExtensionContext context) {
        ExtensionContext.Store ofTheRun = context.getRoot().getStore(ExtensionContext.Namespace.create(Halfmoon.class));
        return ofTheRun.getOrComputeIfAbsent(Running.class, key -> Running.start(), Running.class).servers;
    }

    /** The process; JUnit closes it at the end of the run. */
    private record Running(Process process, Servers servers) implements ExtensionContext.Store.CloseableResource {

        static Running start() {
            String command = System.getenv().getOrDefault("HALFMOON", "halfmoon");
            try {
                Process process = new ProcessBuilder(List.of(command, "serve", "--ephemeral", "--until-eof"))
                        .redirectError(ProcessBuilder.Redirect.INHERIT)
                        .start();
                var lines = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
                String ready = lines.readLine();
                if (ready == null) {
                    throw new IllegalStateException(command + " did not start; what it says stands above");
                }
                return new Running(process, new Servers(fact(ready, "nameserver"), fact(ready, "broker")));
            } catch (IOException exc) {
                throw new UncheckedIOException(command + " cannot be run: set HALFMOON to where it is installed", exc);
            }
        }

        private static String fact(String ready, String name) {
            Matcher found = Pattern.compile("\"" + name + "\": \"([^\"]+)\"").matcher(ready);
            if (!found.find()) {
                throw new IllegalStateException("no " + name + " in " + ready);
            }
            return found.group(1);
        }

        @Override
        public void close() throws Exception {
            process.getOutputStream().close();
            if (!process.waitFor(30, TimeUnit.SECONDS)) {
                process.destroyForcibly();
            }
        }
    }
}
