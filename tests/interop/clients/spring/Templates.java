import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.apache.rocketmq.spring.support.RocketMQHeaders;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;

/** What is sent through a RocketMQTemplate. */
final class Templates {
    private static final long TIMEOUT_MS = 10_000;

    private Templates() {
    }

    static Object send(RocketMQTemplate template, JSONObject order) {
        List<Object> results = new ArrayList<>();
        for (int i = 0; i < Math.max(1, order.getIntValue("count")); i++) {
            results.add(facts(send(template, message(order, i), order)));
        }
        return results;
    }

    private static SendResult send(RocketMQTemplate template, Message<?> message, JSONObject order) {
        String to = destination(order);
        if (order.containsKey("sharding_key")) {
            return template.syncSendOrderly(to, message, order.getString("sharding_key"), TIMEOUT_MS);
        }
        if (order.containsKey("deliver_ms")) {
            return template.syncSendDeliverTimeMills(to, message, order.getLongValue("deliver_ms"));
        }
        return template.syncSend(to, message, TIMEOUT_MS, order.getIntValue("level"));
    }

    static Object batch(RocketMQTemplate template, JSONObject order) {
        List<Message<?>> messages = new ArrayList<>();
        for (int i = 0; i < order.getIntValue("count"); i++) {
            messages.add(message(order, i));
        }
        return facts(template.syncSend(destination(order), messages, TIMEOUT_MS));
    }

    static Object load(RocketMQTemplate template, JSONObject order) {
        String body = order.getString("body");
        return Load.start(order.getString("group"), number -> facts(template.syncSend(destination(order), message(order, number))),
            number -> body.replace("{n}", String.valueOf(number)));
    }

    static Object request(RocketMQTemplate template, JSONObject order) {
        return template.sendAndReceive(destination(order), order.getString("body"), String.class, order.getLongValue("timeout_ms"));
    }

    static Object transactions(RocketMQTemplate template, JSONObject order) {
        List<Object> results = new ArrayList<>();
        for (int i = 0; i < Math.max(1, order.getIntValue("count")); i++) {
            results.add(facts(template.sendMessageInTransaction(destination(order), message(order, i), null)));
        }
        return results;
    }

    private static String destination(JSONObject order) {
        return order.containsKey("tag") ? order.getString("topic") + ":" + order.getString("tag") : order.getString("topic");
    }

    private static Message<?> message(JSONObject order, int number) {
        String body = order.getString("body").replace("{n}", String.valueOf(number));
        MessageBuilder<byte[]> message = MessageBuilder.withPayload(body.getBytes(StandardCharsets.UTF_8));
        if (order.containsKey("keys")) {
            message.setHeader(RocketMQHeaders.KEYS, order.getString("keys").replace("{n}", String.valueOf(number)));
        }
        if (order.containsKey("properties")) {
            order.getJSONObject("properties").forEach((name, value) -> message.setHeader(name, String.valueOf(value)));
        }
        return message.build();
    }

    private static Map<String, Object> facts(SendResult result) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("status", result.getSendStatus().name());
        facts.put("msg_id", result.getMsgId());
        facts.put("offset_msg_id", result.getOffsetMsgId());
        facts.put("queue_id", result.getMessageQueue().getQueueId());
        facts.put("broker_name", result.getMessageQueue().getBrokerName());
        facts.put("queue_offset", result.getQueueOffset());
        return facts;
    }
}
