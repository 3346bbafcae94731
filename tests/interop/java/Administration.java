import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Apache's admin tool, run in this JVM with its output taken, and the queries of the admin interface. */
final class Administration {
    private static DefaultMQAdminExt admin;

    private Administration() {
    }

    static void verbs() {
        Peer.verb("mqadmin", order -> mqadmin(order.getJSONArray("arguments").toArray(new String[0])));
        Peer.verb("admin", Administration::start);
        Peer.verb("admin.stop", order -> {
            admin.shutdown();
            return true;
        });
        Peer.verb("query.id", order -> Bodies.facts(admin.viewMessage(order.getString("topic"), order.getString("id"))));
        Peer.verb("query.key", Administration::byKey);
        Peer.verb("offset.max", order -> admin.maxOffset(queue(order)));
        Peer.verb("offset.min", order -> admin.minOffset(queue(order)));
        Peer.verb("offset.at", order -> admin.searchOffset(queue(order), order.getLongValue("at_ms")));
        Peer.verb("earliest_ms", order -> admin.earliestMsgStoreTime(queue(order)));
    }

    private static Object start(JSONObject order) throws Exception {
        admin = new DefaultMQAdminExt(5000L);
        admin.setNamesrvAddr(order.getString("nameserver"));
        admin.setInstanceName("peer-admin");
        admin.setVipChannelEnabled(false);
        admin.start();
        return true;
    }

    private static MessageQueue queue(JSONObject order) {
        return new MessageQueue(order.getString("topic"), order.getString("broker_name"), order.getIntValue("queue_id"));
    }

    private static Object byKey(JSONObject order) throws Exception {
        QueryResult found = admin.queryMessage(order.getString("topic"), order.getString("key"), 64, 0, System.currentTimeMillis() + 60_000);
        List<Object> messages = new ArrayList<>();
        for (MessageExt message : found.getMessageList()) {
            messages.add(Bodies.facts(message));
        }
        return messages;
    }

    private static String mqadmin(String[] arguments) throws Exception {
        ByteArrayOutputStream taken = new ByteArrayOutputStream();
        PrintStream before = System.out;
        PrintStream errors = System.err;
        try (PrintStream out = new PrintStream(taken, true, "UTF-8")) {
            System.setOut(out);
            System.setErr(out);
            MQAdminStartup.main0(arguments, null);
        } finally {
            System.setOut(before);
            System.setErr(errors);
        }
        return new String(taken.toByteArray(), StandardCharsets.UTF_8);
    }
}
