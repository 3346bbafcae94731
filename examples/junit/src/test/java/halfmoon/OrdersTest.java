package halfmoon;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;

@ExtendWith(Halfmoon.class)
class OrdersTest {

    /** Stands for the database of a shop: orders of a positive amount are committed. */
    private static final class Shop implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object amount) {
            return (int) amount > 0 ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.UNKNOW;
        }
    }

    @Test
    void onlyOrdersThatWereCommittedAreDelivered(Halfmoon.Servers servers) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("P_shop");
        producer.setNamesrvAddr(servers.nameserver());
        producer.setTransactionListener(new Shop());
        producer.start();
        producer.sendMessageInTransaction(new Message("orders", "refused".getBytes(StandardCharsets.UTF_8)), -1);
        producer.sendMessageInTransaction(new Message("orders", "paid".getBytes(StandardCharsets.UTF_8)), 20);

        BlockingQueue<String> delivered = new LinkedBlockingQueue<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("C_mail");
        consumer.setNamesrvAddr(servers.nameserver());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("orders", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> delivered.add(new String(message.getBody(), StandardCharsets.UTF_8)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            assertEquals("paid", delivered.poll(60, TimeUnit.SECONDS));
            assertEquals(null, delivered.poll(1, TimeUnit.SECONDS));
        } finally {
            consumer.shutdown();
            producer.shutdown();
        }
    }
}
