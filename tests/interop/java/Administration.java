import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Type;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
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
        Orders.verb("mqadmin", Administration::mqadmin);
        System.setSecurityManager(new StaysAlive());
        Orders.verb("admin", Administration::start);
        Orders.verb("admin.stop", order -> {
            admin.shutdown();
            return true;
        });
        Orders.verb("admin.call", Administration::call);
        Orders.verb("query.id", order -> Bodies.facts(admin.viewMessage(order.getString("topic"), order.getString("id"))));
        Orders.verb("query.key", Administration::byKey);
        Orders.verb("offset.max", order -> admin.maxOffset(queue(order)));
        Orders.verb("offset.min", order -> admin.minOffset(queue(order)));
        Orders.verb("offset.at", order -> admin.searchOffset(queue(order), order.getLongValue("at_ms")));
        Orders.verb("earliest_ms", order -> admin.earliestMsgStoreTime(queue(order)));
    }

    private static Object start(JSONObject order) throws Exception {
        admin = new DefaultMQAdminExt(Access.hook(order), 5000L);
        admin.setNamesrvAddr(order.getString("nameserver"));
        admin.setInstanceName("peer-admin");
        admin.setVipChannelEnabled(false);
        admin.start();
        return true;
    }

    /** Call the method "method" of the admin interface with the JSON values "arguments"; answer what it returns as JSON text. */
    private static Object call(JSONObject order) throws Exception {
        JSONArray arguments = order.getJSONArray("arguments");
        for (Method method : DefaultMQAdminExt.class.getMethods()) {
            if (method.getName().equals(order.getString("method")) && method.getParameterCount() == arguments.size()) {
                Object[] values = new Object[arguments.size()];
                for (int i = 0; i < values.length; i++) {
                    Type type = method.getGenericParameterTypes()[i];
                    values[i] = type == Properties.class ? properties(arguments.getJSONObject(i)) : arguments.getObject(i, type);
                }
                try {
                    return JSON.toJSONString(method.invoke(admin, values));
                } catch (InvocationTargetException wrong) {
                    throw (Exception) wrong.getCause();
                }
            }
        }
        throw new NoSuchMethodException(order.getString("method"));
    }

    private static Properties properties(JSONObject values) {
        Properties properties = new Properties();
        properties.putAll(values);
        return properties;
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

    /**
     * Run one command as a process of its own would: with new commands, which keep no producer of the call before, and with an
     * exit that ends the call. A command that never ends is interrupted after "within_ms".
     */
    private static String mqadmin(JSONObject order) throws Exception {
        String[] arguments = order.getJSONArray("arguments").toArray(new String[0]);
        ByteArrayOutputStream taken = new ByteArrayOutputStream();
        PrintStream before = System.out;
        PrintStream errors = System.err;
        try (PrintStream out = new PrintStream(taken, true, "UTF-8")) {
            System.setOut(out);
            System.setErr(out);
            commands().clear();
            Thread command = new Thread(() -> MQAdminStartup.main0(arguments, null));
            command.setUncaughtExceptionHandler((thread, wrong) -> {
                if (!(wrong instanceof Exit)) {
                    wrong.printStackTrace();
                }
            });
            command.start();
            command.join(order.getLongValue("within_ms"));
            command.interrupt();
            command.join();
        } finally {
            System.setOut(before);
            System.setErr(errors);
        }
        return new String(taken.toByteArray(), StandardCharsets.UTF_8);
    }

    /** What an exit becomes. */
    private static final class Exit extends Error {
    }

    /** Refuses nothing but to end the JVM from a thread of a command. */
    private static final class StaysAlive extends SecurityManager {
        @Override
        public void checkExit(int status) {
            if (!Thread.currentThread().getName().equals("main")) {
                throw new Exit();
            }
        }

        @Override
        public void checkPermission(java.security.Permission permission) {
        }

        @Override
        public void checkPermission(java.security.Permission permission, Object context) {
        }
    }

    /** The list that the tool's commands are in: its name is another in 5.x. */
    private static List<?> commands() throws ReflectiveOperationException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (field.getType() == List.class) {
                field.setAccessible(true);
                return (List<?>) field.get(null);
            }
        }
        throw new NoSuchFieldException("no list of commands");
    }
}
