import com.alibaba.fastjson.JSONObject;
import com.aliyun.openservices.ons.api.Admin;
import com.aliyun.openservices.ons.api.Message;
import com.aliyun.openservices.ons.api.ONSFactory;
import com.aliyun.openservices.ons.api.Producer;
import com.aliyun.openservices.ons.api.SendResult;
import com.aliyun.openservices.ons.api.order.OrderProducer;
import com.aliyun.openservices.ons.api.transaction.TransactionProducer;
import com.aliyun.openservices.ons.api.transaction.TransactionStatus;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;

/** Producers of its three kinds. The one for messages in order is made when the first message with a sharding key is sent. */
final class Senders {
    private static final Map<String, Producer> PRODUCERS = new ConcurrentHashMap<>();
    private static final Map<String, OrderProducer> IN_ORDER = new ConcurrentHashMap<>();
    private static final Map<String, TransactionProducer> DECIDERS = new ConcurrentHashMap<>();
    private static final Map<String, Properties> GIVEN = new ConcurrentHashMap<>();

    private Senders() {
    }

    static void verbs() {
        Orders.verb("producer", Senders::start);
        Orders.verb("producer.stop", Senders::stop);
        Orders.verb("send", Senders::send);
        Orders.verb("load", order -> {
            String body = order.getString("body");
            Producer producer = PRODUCERS.get(order.getString("group"));
            return Load.start(order.getString("group"), number -> facts(producer.send(message(order, number))),
                number -> body.replace("{n}", String.valueOf(number)));
        });
        Load.verbs();
        Orders.verb("tx.producer", Senders::decider);
        Orders.verb("tx.send", Senders::decide);
        Orders.verb("tx.checks", order -> Kept.of("tx " + order.getString("name")).all());
        Orders.verb("tx.stop", order -> {
            DECIDERS.remove(order.getString("name")).shutdown();
            return Kept.end("tx " + order.getString("name"));
        });
    }

    private static Object start(JSONObject order) {
        String group = order.getString("group");
        GIVEN.put(group, Peer.properties(order, "producer-" + group));
        Producer producer = ONSFactory.createProducer(GIVEN.get(group));
        producer.start();
        PRODUCERS.put(group, producer);
        return true;
    }

    private static Object stop(JSONObject order) {
        PRODUCERS.remove(order.getString("group")).shutdown();
        Admin inOrder = IN_ORDER.remove(order.getString("group"));
        if (inOrder != null) {
            inOrder.shutdown();
        }
        return true;
    }

    private static OrderProducer inOrder(String group) {
        return IN_ORDER.computeIfAbsent(group, missing -> {
            Properties properties = new Properties();
            properties.putAll(GIVEN.get(group));
            properties.setProperty("InstanceName", "in-order-" + group);
            OrderProducer producer = ONSFactory.createOrderProducer(properties);
            producer.start();
            return producer;
        });
    }

    private static Object send(JSONObject order) {
        String group = order.getString("group");
        List<Object> results = new ArrayList<>();
        for (int i = 0; i < Math.max(1, order.getIntValue("count")); i++) {
            Message message = message(order, i);
            results.add(facts(order.containsKey("sharding_key") ? inOrder(group).send(message, order.getString("sharding_key"))
                : PRODUCERS.get(group).send(message)));
        }
        return results;
    }

    private static Object decider(JSONObject order) {
        Kept checks = Kept.begin("tx " + order.getString("name"));
        TransactionProducer producer = ONSFactory.createTransactionProducer(Peer.properties(order, "tx-" + order.getString("name")), message -> {
            checks.add(Peer.facts(message));
            return state(message, "check");
        });
        producer.start();
        DECIDERS.put(order.getString("name"), producer);
        return true;
    }

    private static Object decide(JSONObject order) {
        List<Object> results = new ArrayList<>();
        for (int i = 0; i < Math.max(1, order.getIntValue("count")); i++) {
            Message message = message(order, i);
            try {
                results.add(facts(DECIDERS.get(order.getString("name")).send(message, (given, argument) -> state(given, "execute"), null)));
            } catch (RuntimeException wrong) {
                if (state(message, "execute") != TransactionStatus.RollbackTransaction) {  // of those it tells in this way
                    throw wrong;
                }
                results.add(Collections.singletonMap("rolled_back", wrong.getMessage()));
            }
        }
        return results;
    }

    private static TransactionStatus state(Message message, String property) {
        switch (message.getUserProperties(property)) {
            case "COMMIT_MESSAGE":
                return TransactionStatus.CommitTransaction;
            case "ROLLBACK_MESSAGE":
                return TransactionStatus.RollbackTransaction;
            default:
                return TransactionStatus.Unknow;
        }
    }

    private static Message message(JSONObject order, int number) {
        String body = order.getString("body").replace("{n}", String.valueOf(number));
        Message message = new Message(order.getString("topic"), order.getString("tag"), body.getBytes(StandardCharsets.UTF_8));
        if (order.containsKey("keys")) {
            message.setKey(order.getString("keys").replace("{n}", String.valueOf(number)));
        }
        if (order.containsKey("deliver_ms")) {
            message.setStartDeliverTime(order.getLongValue("deliver_ms"));
        }
        if (order.containsKey("properties")) {
            order.getJSONObject("properties").forEach((name, value) -> message.putUserProperties(name, String.valueOf(value)));
        }
        return message;
    }

    private static Map<String, Object> facts(SendResult result) {
        return Collections.singletonMap("msg_id", result.getMessageId());
    }
}
