import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Requests and those who reply to them: the reply is the request's body in capitals. */
final class Requests {
    private static DefaultMQPushConsumer replier;
    private static final List<Object> REPLIES = Collections.synchronizedList(new ArrayList<>());

    private Requests() {
    }

    static void verbs() {
        Orders.verb("replier", Requests::start);
        Orders.verb("replier.stop", order -> {
            for (int i = 0; REPLIES.size() < order.getIntValue("count") && i < 1000; i++) {
                Thread.sleep(10);  // who asked hears of the reply before who replied does
            }
            replier.shutdown();
            return REPLIES;
        });
        Orders.verb("request", order -> {
            Message reply = Senders.producer(order).request(Bodies.message(order, 0), order.getLongValue("timeout_ms"));
            return new String(reply.getBody(), StandardCharsets.UTF_8);
        });
        Orders.verb("request.async", Requests::async);
    }

    private static Object start(JSONObject order) throws Exception {
        DefaultMQProducer producer = Senders.producer(order);
        REPLIES.clear();
        replier = new DefaultMQPushConsumer(order.getString("name"));
        replier.setNamesrvAddr(order.getString("nameserver"));
        replier.setInstanceName("peer-" + order.getString("name"));
        // 5.3.3 may fail to tell the broker of its newest subscription, and then pulls nothing until its next heartbeat
        replier.setHeartbeatBrokerInterval(1_000);
        replier.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        replier.subscribe(order.getString("topic"), "*");
        replier.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    byte[] body = new String(message.getBody(), StandardCharsets.UTF_8).toUpperCase().getBytes(StandardCharsets.UTF_8);
                    REPLIES.add(Senders.facts(producer.send(MessageUtil.createReplyMessage(message, body), 10_000)));
                } catch (Exception refused) {
                    REPLIES.add(String.valueOf(refused));
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        replier.start();
        return true;
    }

    private static Object async(JSONObject order) throws Exception {
        CompletableFuture<String> reply = new CompletableFuture<>();
        Senders.producer(order).request(Bodies.message(order, 0), new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                reply.complete(new String(message.getBody(), StandardCharsets.UTF_8));
            }

            @Override
            public void onException(Throwable wrong) {
                reply.completeExceptionally(wrong);
            }
        }, order.getLongValue("timeout_ms"));
        return reply.get(60, TimeUnit.SECONDS);
    }
}
