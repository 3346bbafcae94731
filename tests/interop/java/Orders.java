import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/** Orders over standard input: one JSON object a line with a "verb", answered by one JSON object a line, in order. Knows no client. */
final class Orders {
    interface Verb {
        Object run(JSONObject order) throws Exception;
    }

    private static final Map<String, Verb> VERBS = new HashMap<>();

    private Orders() {
    }

    static void verb(String name, Verb verb) {
        VERBS.put(name, verb);
    }

    /** Answer on ``answers`` until the input ends. */
    static void serve(PrintStream answers) throws IOException {
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            JSONObject answer = new JSONObject(true);
            try {
                JSONObject order = JSON.parseObject(line);
                Verb verb = VERBS.get(order.getString("verb"));
                if (verb == null) {
                    throw new IllegalArgumentException("no such verb: " + order.getString("verb"));
                }
                answer.put("result", verb.run(order));
            } catch (Throwable wrong) {
                answer.put("error", wrong.getClass().getSimpleName());
                answer.put("text", String.valueOf(wrong.getMessage()));
                answer.put("code", code(wrong));
            }
            answers.write((answer.toJSONString() + "\n").getBytes(StandardCharsets.UTF_8));
            answers.flush();
        }
    }

    /** The response code that an exception of the client carries, or null. */
    private static Integer code(Throwable wrong) {
        try {
            return (Integer) wrong.getClass().getMethod("getResponseCode").invoke(wrong);
        } catch (ReflectiveOperationException none) {
            return null;
        }
    }
}
