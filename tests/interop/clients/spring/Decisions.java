import java.nio.charset.StandardCharsets;
import java.util.Collections;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.messaging.Message;

/** Decides as the message's headers say: "execute" after it is sent, "check" when the broker asks. */
@RocketMQTransactionListener
class Decisions implements RocketMQLocalTransactionListener {
    @Value("${peer.name}")
    private String name;

    @Override
    public RocketMQLocalTransactionState executeLocalTransaction(Message message, Object argument) {
        return state(message, "execute");
    }

    @Override
    public RocketMQLocalTransactionState checkLocalTransaction(Message message) {
        Kept.of("tx " + name).add(Collections.singletonMap("body", new String((byte[]) message.getPayload(), StandardCharsets.UTF_8)));
        return state(message, "check");
    }

    private static RocketMQLocalTransactionState state(Message<?> message, String header) {
        switch (String.valueOf(message.getHeaders().get(header))) {
            case "COMMIT_MESSAGE":
                return RocketMQLocalTransactionState.COMMIT;
            case "ROLLBACK_MESSAGE":
                return RocketMQLocalTransactionState.ROLLBACK;
            default:
                return RocketMQLocalTransactionState.UNKNOWN;
        }
    }
}
