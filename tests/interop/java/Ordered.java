import com.alibaba.fastjson.JSONObject;
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

    private Ordered() {
    }

    static void verbs() {
        Orders.verb("orderly", Ordered::start);
        Orders.verb("orderly.wait", Kept::await);
        Orders.verb("orderly.stop", order -> {
            CONSUMERS.remove(order.getString("name")).shutdown();
            return Kept.end(order.getString("name"));
        });
    }

    /** Each message is consumed after "work_ms"; a body that is "fails" suspends its queue each time. */
    private static Object start(JSONObject order) throws Exception {
        String name = order.getString("name");
        Kept calls = Kept.begin(name);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(order.getString("group"));
        consumer.setNamesrvAddr(order.getString("nameserver"));
        consumer.setInstanceName("peer-" + name);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setSuspendCurrentQueueTimeMillis(50);
        Senders.findRoutesEvery(consumer, order);
        if (order.containsKey("reconsume_max")) {
            consumer.setMaxReconsumeTimes(order.getIntValue("reconsume_max"));
        }
        consumer.subscribe(order.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            MessageExt message = messages.get(0);
            Map<String, Object> facts = Bodies.facts(message);
            facts.put("text", new String(message.getBody()));
            facts.put("times", message.getReconsumeTimes());
            facts.put("at_ms", System.currentTimeMillis());
            calls.add(facts);
            pause(order.getLongValue("work_ms"));
            boolean fails = "fails".equals(facts.get("text"));
            return fails ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
        });
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
}
