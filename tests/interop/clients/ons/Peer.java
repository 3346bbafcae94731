import com.alibaba.fastjson.JSONObject;
import com.aliyun.openservices.ons.api.Action;
import com.aliyun.openservices.ons.api.Admin;
import com.aliyun.openservices.ons.api.Consumer;
import com.aliyun.openservices.ons.api.Message;
import com.aliyun.openservices.ons.api.MessageSelector;
import com.aliyun.openservices.ons.api.ONSFactory;
import com.aliyun.openservices.ons.api.PropertyKeyConst;
import com.aliyun.openservices.ons.api.PropertyValueConst;
import com.aliyun.openservices.ons.api.order.OrderAction;
import com.aliyun.openservices.ons.api.order.OrderConsumer;
import com.aliyun.openservices.shade.com.alibaba.rocketmq.remoting.netty.TlsSystemConfig;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;

/** Aliyun's client, told what to do: its consumers by name, and what all its parts are configured with. */
public final class Peer {
    private static final Map<String, Admin> CONSUMERS = new ConcurrentHashMap<>();

    private Peer() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        Senders.verbs();
        Orders.verb("push", Peer::push);
        Orders.verb("push.wait", Kept::await);
        Orders.verb("push.stop", order -> {
            CONSUMERS.remove(order.getString("name")).shutdown();
            return Kept.end(order.getString("name"));
        });
        Orders.serve(answers);
        System.exit(0);
    }

    /** It signs always: without keys in an order with some that a broker without access control does not read. */
    static Properties properties(JSONObject order, String instance) {
        if (order.containsKey("ca")) {
            TlsSystemConfig.tlsTestModeEnable = false;
            TlsSystemConfig.tlsClientAuthServer = true;
            TlsSystemConfig.tlsClientTrustCertPath = order.getString("ca");
        }
        TlsSystemConfig.tlsEnable = order.getBooleanValue("tls");  // what -Dtls.enable sets
        Properties properties = new Properties();
        properties.setProperty(PropertyKeyConst.NAMESRV_ADDR, order.getString("nameserver"));
        properties.setProperty(PropertyKeyConst.GROUP_ID, order.getString("group"));
        properties.setProperty(PropertyKeyConst.AccessKey, order.getOrDefault("access_key", "nobody").toString());
        properties.setProperty(PropertyKeyConst.SecretKey, order.getOrDefault("secret_key", "nothing").toString());
        properties.setProperty(PropertyKeyConst.InstanceName, instance);
        properties.setProperty(PropertyKeyConst.SuspendTimeMillis, "50");
        if (order.containsKey("namespace")) {
            properties.setProperty(PropertyKeyConst.INSTANCE_ID, order.getString("namespace"));
        }
        if (order.getBooleanValue("broadcast")) {
            properties.setProperty(PropertyKeyConst.MessageModel, PropertyValueConst.BROADCASTING);
        }
        if (order.containsKey("reconsume_max")) {
            properties.setProperty(PropertyKeyConst.MaxReconsumeTimes, order.getString("reconsume_max"));
        }
        return properties;
    }

    /** "expression" are tags, "sql" is a filter; each message is refused "fails" times. */
    private static Object push(JSONObject order) {
        String name = order.getString("name");
        MessageSelector selector = order.containsKey("sql") ? MessageSelector.bySql(order.getString("sql"))
            : MessageSelector.byTag(order.getOrDefault("expression", "*").toString());
        Kept kept = Kept.begin(name);
        Properties properties = properties(order, "consumer-" + name);
        Admin made;
        if (order.getBooleanValue("orderly")) {
            OrderConsumer consumer = ONSFactory.createOrderedConsumer(properties);
            consumer.subscribe(order.getString("topic"), selector,
                (message, context) -> refused(order, kept, message) ? OrderAction.Suspend : OrderAction.Success);
            made = consumer;
        } else {
            Consumer consumer = ONSFactory.createConsumer(properties);
            consumer.subscribe(order.getString("topic"), selector,
                (message, context) -> refused(order, kept, message) ? Action.ReconsumeLater : Action.CommitMessage);
            made = consumer;
        }
        made.start();
        CONSUMERS.put(name, made);
        return true;
    }

    private static boolean refused(JSONObject order, Kept kept, Message message) {
        kept.add(facts(message));
        return kept.among(order.getIntValue("fails"), new String(message.getBody(), StandardCharsets.UTF_8));
    }

    static Map<String, Object> facts(Message message) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("topic", message.getTopic());
        facts.put("queue_offset", message.getOffset());
        facts.put("msg_id", message.getMsgID());
        facts.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        facts.put("tag", message.getTag());
        facts.put("keys", message.getKey());
        facts.put("born_ms", message.getBornTimestamp());
        facts.put("reconsume_times", message.getReconsumeTimes());
        facts.put("properties", message.getUserProperties());
        facts.put("at_ms", System.currentTimeMillis());
        return facts;
    }
}
