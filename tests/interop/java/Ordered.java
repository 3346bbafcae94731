import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** Orderly push consumers by name. Each call of the listener is kept until it is asked for. */
final class Ordered {
    private static final Map<String, DefaultMQPushConsumer> CONSUMERS = new ConcurrentHashMap<>();
    private static final Map<String, List<Object>> CALLS = new ConcurrentHashMap<>();

    private Ordered() {
    }

    static void verbs() {
        Peer.verb("orderly", Ordered::start);
        Peer.verb("orderly.wait", Ordered::await);
        Peer.verb("orderly.stop", order -> {
            CONSUMERS.remove(order.getString("name")).shutdown();
            return CALLS.remove(order.getString("name"));
        });
    }

    /** Each message is consumed after "work_ms"; a body that is "fails" suspends its queue each time. */
    private static Object start(JSONObject order) throws Exception {
        String name = order.getString("name");
        List<Object> calls = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(order.getString("group"));
        consumer.setNamesrvAddr(order.getString("nameserver"));
        consumer.setInstanceName("peer-" + name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setSuspendCurrentQueueTimeMillis(50);
        if (order.containsKey("reconsume_max")) {
            consumer.setMaxReconsumeTimes(order.getIntValue("reconsume_max"));
        }
        consumer.subscribe(order.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            MessageExt message = messages.get(0);
            Map<String, Object> facts = Bodies.facts(message);
            facts.put("text", new String(message.getBody()));
            facts.put("times", message.getReconsumeTimes());
            calls.add(facts);
            pause(order.getLongValue("work_ms"));
            boolean fails = "fails".equals(facts.get("text"));
            return fails ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
        });
        CALLS.put(name, calls);
        consumer.start();
        CONSUMERS.put(name, consumer);
        return true;
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    /** Wait until "count" calls were made or "timeout_ms" passed; answer all that were made. */
    private static Object await(JSONObject order) throws InterruptedException {
        List<Object> calls = CALLS.get(order.getString("name"));
        long end = System.currentTimeMillis() + order.getLongValue("timeout_ms");
        while (calls.size() < order.getIntValue("count") && System.currentTimeMillis() < end) {
            Thread.sleep(5);
        }
        synchronized (calls) {
            return new ArrayList<>(calls);
        }
    }
}
