import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.zip.CRC32;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages from orders, and messages as answers. Large bodies travel as size and checksum; the caller makes the same bytes. */
final class Bodies {
    private static final int BLOCK = 65536;

    private Bodies() {
    }

    /** "body" is text; or "size" bytes: "fill" is "repeat" (compresses well) or "noise" (a block of 64 KiB, over and over). */
    static byte[] body(JSONObject order, int number) {
        if (!order.containsKey("size")) {
            return order.getString("body").replace("{n}", String.valueOf(number)).getBytes(StandardCharsets.UTF_8);
        }
        byte[] body = new byte[order.getIntValue("size")];
        boolean noise = "noise".equals(order.getString("fill"));
        long state = 1;
        for (int i = 0; i < body.length; i++) {
            if (noise && i < BLOCK) {
                state = (state * 1103515245L + 12345L) & 0x7fffffffL;
                body[i] = (byte) (state >> 16);
            } else {
                body[i] = noise ? body[i % BLOCK] : (byte) ((i * 31) % 251);
            }
        }
        return body;
    }

    static Message message(JSONObject order, int number) {
        Message message = new Message(order.getString("topic"), body(order, number));
        if (order.containsKey("tag")) {
            message.setTags(order.getString("tag"));
        }
        if (order.containsKey("keys")) {
            message.setKeys(order.getString("keys").replace("{n}", String.valueOf(number)));
        }
        if (order.containsKey("flag")) {
            message.setFlag(order.getIntValue("flag"));
        }
        if (order.containsKey("level")) {
            message.setDelayTimeLevel(order.getIntValue("level"));
        }
        if (order.containsKey("deliver_ms")) {
            deliverAt(message, order.getLongValue("deliver_ms"));
        }
        if (order.containsKey("properties")) {
            order.getJSONObject("properties").forEach((name, value) -> message.putUserProperty(name, String.valueOf(value)));
        }
        return message;
    }

    /** Clients of 4.x do not have it. */
    private static void deliverAt(Message message, long when) {
        try {
            Message.class.getMethod("setDeliverTimeMs", long.class).invoke(message, when);
        } catch (ReflectiveOperationException missing) {
            throw new IllegalStateException(missing);
        }
    }

    static Map<String, Object> facts(MessageExt message) {
        CRC32 crc = new CRC32();
        crc.update(message.getBody());
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("topic", message.getTopic());
        facts.put("queue_id", message.getQueueId());
        facts.put("queue_offset", message.getQueueOffset());
        facts.put("physical_offset", message.getCommitLogOffset());
        facts.put("msg_id", message.getMsgId());
        facts.put("size", message.getBody().length);
        facts.put("crc", crc.getValue());
        facts.put("body", message.getBody().length <= 512 ? new String(message.getBody(), StandardCharsets.UTF_8) : null);
        facts.put("tag", message.getTags());
        facts.put("keys", message.getKeys());
        facts.put("flag", message.getFlag());
        facts.put("sys_flag", message.getSysFlag());
        facts.put("born_ms", message.getBornTimestamp());
        facts.put("store_ms", message.getStoreTimestamp());
        facts.put("born_host", message.getBornHostString());
        facts.put("store_host", String.valueOf(message.getStoreHost()));
        facts.put("reconsume_times", message.getReconsumeTimes());
        facts.put("properties", message.getProperties());
        return facts;
    }
}
