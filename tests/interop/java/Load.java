import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** Sends one message after another until told to stop; what fails is tried again as a new message. Outlives a broker. */
final class Load extends Thread {
    interface Sending {
        Object send(int number) throws Exception;
    }

    interface Naming {
        String name(int number);
    }

    private static final Map<String, Load> RUNNING = new ConcurrentHashMap<>();

    private final Map<String, Object> acknowledged = new ConcurrentHashMap<>();
    private final Sending sending;
    private final Naming naming;
    private volatile boolean stop;
    private volatile int failed;
    private volatile long longestMs;

    private Load(Sending sending, Naming naming) {
        this.sending = sending;
        this.naming = naming;
        setDaemon(true);
    }

    /** The verbs of a load, which is known by its producer's group. */
    static void verbs() {
        Orders.verb("load.count", order -> RUNNING.get(order.getString("group")).acknowledged.size());
        Orders.verb("load.stop", order -> RUNNING.remove(order.getString("group")).finish());
    }

    /** Start one. What was acknowledged is kept by the names of the messages. */
    static boolean start(String group, Sending sending, Naming naming) {
        Load load = new Load(sending, naming);
        RUNNING.put(group, load);
        load.start();
        return true;
    }

    @Override
    public void run() {
        long last = System.nanoTime();
        for (int i = 0; !stop; i++) {
            try {
                acknowledged.put(naming.name(i), sending.send(i));
                longestMs = Math.max(longestMs, (System.nanoTime() - last) / 1_000_000);
                last = System.nanoTime();
            } catch (Exception refused) {
                failed++;
                try {
                    Thread.sleep(20);
                } catch (InterruptedException end) {
                    return;
                }
            }
        }
    }

    private Object finish() throws InterruptedException {
        stop = true;
        join(20_000);
        Map<String, Object> facts = new LinkedHashMap<>();
        facts.put("acknowledged", acknowledged);
        facts.put("failed", failed);
        facts.put("longest_ms", longestMs);  // between two that were acknowledged
        return facts;
    }
}
