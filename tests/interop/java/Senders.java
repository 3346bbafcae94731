import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Producers by name: start, send in every way, and a steady load that outlives a broker. */
final class Senders {
    private static final Map<String, DefaultMQProducer> PRODUCERS = new ConcurrentHashMap<>();

    private Senders() {
    }

    static void verbs() {
        Orders.verb("producer", Senders::start);
        Orders.verb("producer.stop", order -> {
            PRODUCERS.remove(order.getString("group")).shutdown();
            return true;
        });
        Orders.verb("send", Senders::send);
        Orders.verb("send.batch", Senders::batch);
        Orders.verb("send.async", Senders::async);
        Orders.verb("send.oneway", Senders::oneway);
        Orders.verb("queues", order -> queues(producer(order).fetchPublishMessageQueues(order.getString("topic"))));
        Orders.verb("load", order -> {
            DefaultMQProducer producer = producer(order);
            int pause = order.getIntValue("pause_ms");
            return Load.start(order.getString("group"), number -> {
                Thread.sleep(pause);
                return facts(producer.send(Bodies.message(order, number)));
            }, number -> order.getString("keys").replace("{n}", String.valueOf(number)));
        });
        Load.verbs();
    }

    static DefaultMQProducer producer(JSONObject order) {
        return PRODUCERS.get(order.getString("group"));
    }

    private static Object start(JSONObject order) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(order.getString("group"), Access.hook(order), order.getBooleanValue("trace"), null);
        producer.setNamesrvAddr(order.getString("nameserver"));
        producer.setInstanceName("peer-" + order.getString("group"));
        if (order.containsKey("timeout_ms")) {
            producer.setSendMsgTimeout(order.getIntValue("timeout_ms"));
        }
        findRoutesEvery(producer, order);
        if (order.containsKey("retries")) {
            producer.setRetryTimesWhenSendFailed(order.getIntValue("retries"));
        }
        if (order.containsKey("compress_over")) {
            producer.setCompressMsgBodyOverHowmuch(order.getIntValue("compress_over"));
        }
        producer.start();
        PRODUCERS.put(order.getString("group"), producer);
        return true;
    }

    /** "routes_ms" is the interval at which a client looks for the routes. */
    static void findRoutesEvery(ClientConfig client, JSONObject order) {
        if (order.containsKey("routes_ms")) {
            client.setPollNameServerInterval(order.getIntValue("routes_ms"));
        }
    }

    /** "count" messages one after another; "queue" fixes the queue number, "select" chooses by number modulo. */
    private static Object send(JSONObject order) throws Exception {
        List<Object> results = new ArrayList<>();
        for (int i = 0; i < Math.max(1, order.getIntValue("count")); i++) {
            Message message = Bodies.message(order, i);
            results.add(facts(sendOne(producer(order), message, order, i)));
        }
        return results;
    }

    private static SendResult sendOne(DefaultMQProducer producer, Message message, JSONObject order, int number) throws Exception {
        if (order.containsKey("queue_id")) {
            int id = order.getIntValue("queue_id");
            return producer.send(message, (all, given, arg) -> all.stream().filter(q -> q.getQueueId() == id).findFirst().get(), null);
        }
        if (order.getBooleanValue("select")) {
            return producer.send(message, (all, given, arg) -> all.get((Integer) arg % all.size()), number);
        }
        return producer.send(message);
    }

    private static Object batch(JSONObject order) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < order.getIntValue("count"); i++) {
            messages.add(Bodies.message(order, i));
        }
        return facts(producer(order).send(messages));
    }

    private static Object async(JSONObject order) throws Exception {
        int count = Math.max(1, order.getIntValue("count"));
        List<Object> results = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch open = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            producer(order).send(Bodies.message(order, i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    results.add(facts(result));
                    open.countDown();
                }

                @Override
                public void onException(Throwable wrong) {
                    results.add(String.valueOf(wrong));
                    open.countDown();
                }
            });
        }
        if (!open.await(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException(open.getCount() + " callbacks are missing");
        }
        return results;
    }

    private static Object oneway(JSONObject order) throws Exception {
        for (int i = 0; i < Math.max(1, order.getIntValue("count")); i++) {
            producer(order).sendOneway(Bodies.message(order, i));
        }
        return true;
    }

    static List<Object> queues(Iterable<MessageQueue> queues) {
        List<Object> found = new ArrayList<>();
        for (MessageQueue queue : queues) {
            found.add(queue(queue));
        }
        return found;
    }

    static Map<String, Object> queue(MessageQueue queue) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("topic", queue.getTopic());
        facts.put("broker_name", queue.getBrokerName());
        facts.put("queue_id", queue.getQueueId());
        return facts;
    }

    static Map<String, Object> facts(SendResult result) {
        Map<String, Object> facts = queue(result.getMessageQueue());
        facts.put("status", result.getSendStatus().name());
        facts.put("msg_id", result.getMsgId());
        facts.put("offset_msg_id", result.getOffsetMsgId());
        facts.put("queue_offset", result.getQueueOffset());
        return facts;
    }
}
