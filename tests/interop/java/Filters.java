import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;

/** Apache's SQL92 filter, on expressions and property blocks that the caller makes up. */
final class Filters {
    private Filters() {
    }

    static void verbs() {
        Orders.verb("filter", Filters::filter);
    }

    /** For each expression one text: "refused", or a letter a block: true, false, null, error. Blocks are Base64 of stored bytes. */
    private static Object filter(JSONObject order) {
        List<MessageEvaluationContext> blocks = new ArrayList<>();
        for (Object block : order.getJSONArray("blocks")) {
            String text = new String(Base64.getDecoder().decode((String) block), StandardCharsets.UTF_8);
            blocks.add(new MessageEvaluationContext(MessageDecoder.string2messageProperties(text)));
        }
        List<String> answers = new ArrayList<>();
        for (Object expression : order.getJSONArray("expressions")) {
            answers.add(answers((String) expression, blocks));
        }
        return answers;
    }

    private static String answers(String text, List<MessageEvaluationContext> blocks) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text);
        } catch (Exception refused) {
            return "refused";
        }
        StringBuilder letters = new StringBuilder();
        for (MessageEvaluationContext block : blocks) {
            try {
                Object value = expression.evaluate(block);
                letters.append(value == null ? 'n' : Boolean.TRUE.equals(value) ? 't' : Boolean.FALSE.equals(value) ? 'f' : '?');
            } catch (Throwable wrong) {
                letters.append('e');
            }
        }
        return letters.toString();
    }
}
