import com.alibaba.fastjson.JSONObject;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Push consumers and lite pull consumers by name. What they receive is kept until it is asked for. */
final class Receivers {
    private static final Map<String, DefaultMQPushConsumer> PUSH = new ConcurrentHashMap<>();
    private static final Map<String, DefaultLitePullConsumer> LITE = new ConcurrentHashMap<>();

    private Receivers() {
    }

    static void verbs() {
        Orders.verb("push", Receivers::push);
        Orders.verb("push.wait", Kept::await);
        Orders.verb("push.stop", order -> {
            PUSH.remove(order.getString("name")).shutdown();
            return Kept.end(order.getString("name"));
        });
        Orders.verb("lite", Receivers::lite);
        Orders.verb("lite.queues", order -> Senders.queues(queues(order)));
        Orders.verb("lite.poll", Receivers::poll);
        Orders.verb("lite.seek", Receivers::seek);
        Orders.verb("lite.commit", order -> {
            LITE.get(order.getString("name")).commitSync();
            return true;
        });
        Orders.verb("lite.committed", order -> LITE.get(order.getString("name")).committed(queue(order)));
        Orders.verb("lite.offset_at", order -> LITE.get(order.getString("name")).offsetForTimestamp(queue(order), order.getLong("at_ms")));
        Orders.verb("lite.stop", order -> {
            LITE.remove(order.getString("name")).shutdown();
            return true;
        });
    }

    private static Object push(JSONObject order) throws Exception {
        String name = order.getString("name");
        Kept received = Kept.begin(name);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(order.getString("group"), Access.hook(order), new AllocateMessageQueueAveragely(), order.getBooleanValue("trace"), null);
        consumer.setNamesrvAddr(order.getString("nameserver"));
        consumer.setInstanceName("peer-" + name);
        // 5.3.3 may fail to tell the broker of its newest subscription, and then pulls nothing until its next heartbeat
        consumer.setHeartbeatBrokerInterval(1_000);
        Senders.findRoutesEvery(consumer, order);
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(order.containsKey("from") ? order.getString("from") : "CONSUME_FROM_FIRST_OFFSET"));
        if (order.getBooleanValue("broadcast")) {
            broadcast(consumer);
        }
        if (order.getBooleanValue("broker_allocates")) {
            consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false); // 5.x
        }
        if (order.containsKey("reconsume_max")) {
            consumer.setMaxReconsumeTimes(order.getIntValue("reconsume_max"));
        }
        consumer.subscribe(order.getString("topic"), selector(order));
        boolean fails = order.getBooleanValue("fails");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                Map<String, Object> facts = Bodies.facts(message);
                facts.put("broker_name", context.getMessageQueue().getBrokerName());
                facts.put("at_ms", System.currentTimeMillis());
                received.add(facts);
            }
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        PUSH.put(name, consumer);
        return true;
    }

    /** What is wanted: "sql", or the tags of "expression", or everything. */
    private static MessageSelector selector(JSONObject order) {
        if (order.containsKey("sql")) {
            return MessageSelector.bySql(order.getString("sql"));
        }
        return MessageSelector.byTag(order.containsKey("expression") ? order.getString("expression") : "*");
    }

    /** The enum MessageModel lives in another package in 5.x. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void broadcast(DefaultMQPushConsumer consumer) throws ReflectiveOperationException {
        for (Method method : consumer.getClass().getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                method.invoke(consumer, Enum.valueOf((Class<Enum>) method.getParameterTypes()[0], "BROADCASTING"));
            }
        }
    }

    private static Object lite(JSONObject order) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(order.getString("group"), Access.hook(order));
        consumer.setNamesrvAddr(order.getString("nameserver"));
        consumer.setInstanceName("peer-" + order.getString("name"));
        consumer.setAutoCommit(order.getBooleanValue("auto_commit"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        LITE.put(order.getString("name"), consumer);
        if (order.getBooleanValue("subscribe")) {
            consumer.subscribe(order.getString("topic"), selector(order));
            consumer.start();
        } else {
            consumer.start();
            consumer.assign(queues(order));
        }
        return true;
    }

    private static Collection<MessageQueue> queues(JSONObject order) throws Exception {
        return LITE.get(order.getString("name")).fetchMessageQueues(order.getString("topic"));
    }

    private static MessageQueue queue(JSONObject order) {
        return new MessageQueue(order.getString("topic"), order.getString("broker_name"), order.getIntValue("queue_id"));
    }

    private static Object seek(JSONObject order) throws Exception {
        DefaultLitePullConsumer consumer = LITE.get(order.getString("name"));
        if ("begin".equals(order.getString("to"))) {
            consumer.seekToBegin(queue(order));
        } else if ("end".equals(order.getString("to"))) {
            consumer.seekToEnd(queue(order));
        } else {
            consumer.seek(queue(order), order.getLongValue("to"));
        }
        return true;
    }

    /** Poll until "count" messages came or "timeout_ms" passed. */
    private static Object poll(JSONObject order) {
        DefaultLitePullConsumer consumer = LITE.get(order.getString("name"));
        List<Object> found = new ArrayList<>();
        long end = System.currentTimeMillis() + order.getLongValue("timeout_ms");
        while (found.size() < order.getIntValue("count") && System.currentTimeMillis() < end) {
            for (MessageExt message : consumer.poll(200)) {
                found.add(Bodies.facts(message));
            }
        }
        return found;
    }
}
