import com.alibaba.fastjson.JSONObject;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.remoting.netty.TlsSystemConfig;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.WebApplicationType;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Configuration;

/**
 * Applications of Spring Boot with the RocketMQ starter, told what to do. Each producer and each listener is an application of its
 * own, configured by properties as a user configures it.
 */
public final class Peer {
    @Configuration
    @EnableAutoConfiguration
    static class Application {
    }

    private static final Map<String, ConfigurableApplicationContext> RUNNING = new ConcurrentHashMap<>();

    private Peer() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        Orders.verb("producer", order -> start(order, "producer " + order.getString("group")));
        Orders.verb("producer.stop", order -> stop("producer " + order.getString("group")));
        Orders.verb("send", order -> Templates.send(template(order), order));
        Orders.verb("send.batch", order -> Templates.batch(template(order), order));
        Orders.verb("request", order -> Templates.request(template(order), order));
        Orders.verb("load", order -> Templates.load(template(order), order));
        Load.verbs();
        Orders.verb("tx.producer", Peer::transactions);
        Orders.verb("tx.send", order -> Templates.transactions(template("tx " + order.getString("name")), order));
        Orders.verb("tx.checks", order -> Kept.of("tx " + order.getString("name")).all());
        Orders.verb("tx.stop", order -> stop("tx " + order.getString("name")));
        Orders.verb("push", Peer::push);
        Orders.verb("push.wait", Kept::await);
        Orders.verb("push.stop", order -> {
            stop(order.getString("name"));
            return Kept.end(order.getString("name"));
        });
        Orders.serve(answers);
        System.exit(0);
    }

    private static RocketMQTemplate template(JSONObject order) {
        return template("producer " + order.getString("group"));
    }

    private static RocketMQTemplate template(String name) {
        return RUNNING.get(name).getBean(RocketMQTemplate.class);
    }

    private static Object transactions(JSONObject order) {
        String name = "tx " + order.getString("name");
        Kept.begin(name);
        return start(order, name, Decisions.class);
    }

    private static Object push(JSONObject order) {
        Kept.begin(order.getString("name"));
        return start(order, order.getString("name"), listener(order));
    }

    private static Class<?> listener(JSONObject order) {
        if (order.getBooleanValue("replies")) {
            return Listeners.Replies.class;
        }
        if (order.getBooleanValue("orderly")) {
            return Listeners.InOrder.class;
        }
        if (order.getBooleanValue("broadcast")) {
            return Listeners.ToAll.class;
        }
        if (order.getBooleanValue("trace")) {
            return Listeners.Traced.class;
        }
        return order.containsKey("sql") ? Listeners.BySql.class : Listeners.ByTag.class;
    }

    private static Object start(JSONObject order, String name, Class<?>... beans) {
        Properties properties = new Properties();
        properties.setProperty("rocketmq.name-server", order.getString("nameserver"));
        properties.setProperty("rocketmq.producer.group", order.getString("group"));
        properties.setProperty("rocketmq.producer.tls-enable", String.valueOf(order.getBooleanValue("tls")));
        properties.setProperty("rocketmq.producer.namespace", order.getOrDefault("namespace", "").toString());
        properties.setProperty("rocketmq.producer.enable-msg-trace", String.valueOf(order.getBooleanValue("trace")));
        for (String kind : Arrays.asList("producer", "consumer")) {
            if (order.containsKey("access_key")) {
                properties.setProperty("rocketmq." + kind + ".access-key", order.getString("access_key"));
                properties.setProperty("rocketmq." + kind + ".secret-key", order.getString("secret_key"));
            }
        }
        for (String key : Arrays.asList("name", "group", "topic", "sql", "tls", "reconsume_max", "namespace")) {
            properties.setProperty("peer." + key, order.getOrDefault(key, "").toString());
        }
        properties.setProperty("peer.fails", order.getOrDefault("fails", 0).toString());
        properties.setProperty("peer.expression", order.getOrDefault("expression", "*").toString());
        if (order.containsKey("ca")) {
            TlsSystemConfig.tlsTestModeEnable = false;
            TlsSystemConfig.tlsClientAuthServer = true;
            TlsSystemConfig.tlsClientTrustCertPath = order.getString("ca");
        }
        List<Class<?>> sources = new ArrayList<>(Arrays.asList(beans));
        sources.add(Application.class);
        SpringApplication application = new SpringApplicationBuilder(sources.toArray(new Class<?>[0]))
            .web(WebApplicationType.NONE).logStartupInfo(false).registerShutdownHook(false).properties(properties).build();
        RUNNING.put(name, application.run());
        return true;
    }

    private static Object stop(String name) {
        RUNNING.remove(name).close();
        return true;
    }
}
