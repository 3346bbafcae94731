import java.io.PrintStream;

/** Apache's Java client, told what to do. One JVM serves many checks. It decides nothing: what the answers should be is for the
 * caller to say. */
public final class Peer {
    private Peer() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);  // whatever a library prints stays out of the answers
        Senders.verbs();
        Requests.verbs();
        Transactions.verbs();
        Receivers.verbs();
        Ordered.verbs();
        Administration.verbs();
        Filters.verbs();
        Orders.serve(answers);
        System.exit(0);
    }
}
