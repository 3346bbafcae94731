import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Transactional producers by name. Each message says in its user properties what becomes of it: "execute" is what the local
 * transaction returns (COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW, or "throw"), "check" what a check is answered.
 */
final class Transactions {
    private static final Map<String, TransactionMQProducer> PRODUCERS = new ConcurrentHashMap<>();
    private static final Map<String, List<Object>> CHECKS = new ConcurrentHashMap<>();

    private Transactions() {
    }

    static void verbs() {
        Orders.verb("tx.producer", Transactions::start);
        Orders.verb("tx.stop", order -> {
            PRODUCERS.remove(order.getString("name")).shutdown();
            return true;
        });
        Orders.verb("tx.send", Transactions::send);
        Orders.verb("tx.checks", order -> new ArrayList<>(CHECKS.get(order.getString("name"))));
    }

    private static Object start(JSONObject order) throws Exception {
        String name = order.getString("name");
        TransactionMQProducer producer = new TransactionMQProducer(order.getString("group"), Access.hook(order));
        producer.setNamesrvAddr(order.getString("nameserver"));
        producer.setInstanceName("tx-" + name);
        producer.setVipChannelEnabled(false);
        producer.setSendMsgTimeout(15_000);
        Senders.findRoutesEvery(producer, order);
        List<Object> checks = Collections.synchronizedList(new ArrayList<>());
        CHECKS.put(name, checks);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return state(message.getUserProperty("execute"));
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checks.add(Bodies.facts(message));
                return state(message.getUserProperty("check"));
            }
        });
        producer.start();
        PRODUCERS.put(name, producer);
        return true;
    }

    private static LocalTransactionState state(String text) {
        if ("throw".equals(text)) {
            throw new IllegalStateException("the local transaction failed");
        }
        return text == null ? null : LocalTransactionState.valueOf(text);
    }

    private static Object send(JSONObject order) throws Exception {
        List<Object> results = new ArrayList<>();
        for (int i = 0; i < Math.max(1, order.getIntValue("count")); i++) {
            Message message = Bodies.message(order, i);
            TransactionSendResult result = PRODUCERS.get(order.getString("name")).sendMessageInTransaction(message, null);
            Map<String, Object> facts = new LinkedHashMap<>();
            facts.put("status", result.getSendStatus().name());
            facts.put("state", result.getLocalTransactionState().name());
            facts.put("msg_id", result.getMsgId());
            facts.put("transaction_id", result.getTransactionId());
            facts.put("queue_offset", result.getQueueOffset());
            results.add(facts);
        }
        return results;
    }
}
