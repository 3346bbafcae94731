import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.spring.annotation.ConsumeMode;
import org.apache.rocketmq.spring.annotation.MessageModel;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.annotation.SelectorType;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQPushConsumerLifecycleListener;
import org.apache.rocketmq.spring.core.RocketMQReplyListener;
import org.springframework.beans.factory.annotation.Value;

/** The listeners that an application may have. */
final class Listeners {
    private Listeners() {
    }

    /** Keeps each message; refuses each as often as "peer.fails" says. */
    abstract static class Keeping implements RocketMQListener<MessageExt>, RocketMQPushConsumerLifecycleListener {
        @Value("${peer.name}")
        private String name;
        @Value("${peer.fails}")
        private int fails;
        @Value("${peer.reconsume_max}")
        private Integer reconsumeMax;

        @Override
        public void onMessage(MessageExt message) {
            Kept kept = Kept.of(name);
            kept.add(facts(message));
            if (kept.among(fails, new String(message.getBody(), StandardCharsets.UTF_8))) {
                throw new IllegalStateException("refused on purpose");
            }
        }

        @Override
        public void prepareStart(DefaultMQPushConsumer consumer) {
            consumer.setInstanceName("consumer-" + name);  // two that broadcast in one process would share theirs
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            if (reconsumeMax != null) {
                consumer.setMaxReconsumeTimes(reconsumeMax);
            }
        }
    }

    @RocketMQMessageListener(topic = "${peer.topic}", consumerGroup = "${peer.group}", tlsEnable = "${peer.tls}",
        selectorExpression = "${peer.expression}", namespace = "${peer.namespace}")
    static class ByTag extends Keeping {
    }

    @RocketMQMessageListener(topic = "${peer.topic}", consumerGroup = "${peer.group}", tlsEnable = "${peer.tls}",
        selectorType = SelectorType.SQL92, selectorExpression = "${peer.sql}")
    static class BySql extends Keeping {
    }

    @RocketMQMessageListener(topic = "${peer.topic}", consumerGroup = "${peer.group}", tlsEnable = "${peer.tls}",
        consumeMode = ConsumeMode.ORDERLY, suspendCurrentQueueTimeMillis = 50)
    static class InOrder extends Keeping {
    }

    @RocketMQMessageListener(topic = "${peer.topic}", consumerGroup = "${peer.group}", tlsEnable = "${peer.tls}",
        messageModel = MessageModel.BROADCASTING)
    static class ToAll extends Keeping {
    }

    @RocketMQMessageListener(topic = "${peer.topic}", consumerGroup = "${peer.group}", tlsEnable = "${peer.tls}", enableMsgTrace = true)
    static class Traced extends Keeping {
    }

    @RocketMQMessageListener(topic = "${peer.topic}", consumerGroup = "${peer.group}", tlsEnable = "${peer.tls}")
    static class Replies implements RocketMQReplyListener<String, String> {
        @Override
        public String onMessage(String request) {
            return "answer to " + request;
        }
    }

    private static Map<String, Object> facts(MessageExt message) {
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("topic", message.getTopic());
        facts.put("queue_id", message.getQueueId());
        facts.put("queue_offset", message.getQueueOffset());
        facts.put("msg_id", message.getMsgId());
        facts.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        facts.put("tag", message.getTags());
        facts.put("keys", message.getKeys());
        facts.put("born_ms", message.getBornTimestamp());
        facts.put("reconsume_times", message.getReconsumeTimes());
        facts.put("properties", message.getProperties());
        facts.put("at_ms", System.currentTimeMillis());
        return facts;
    }
}
