import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** What a consumer received, kept by its name until it is asked for. */
final class Kept {
    private static final Map<String, Kept> ALL = new ConcurrentHashMap<>();

    private final List<Object> received = new ArrayList<>();
    private final Map<String, Integer> seen = new HashMap<>();

    private Kept() {
    }

    /** Begin anew under this name. */
    static Kept begin(String name) {
        Kept kept = new Kept();
        ALL.put(name, kept);
        return kept;
    }

    static Kept of(String name) {
        return ALL.get(name);
    }

    synchronized void add(Object facts) {
        received.add(facts);
    }

    /** Whether this body comes for one of the first so many times. */
    synchronized boolean among(int first, String body) {
        return seen.merge(body, 1, Integer::sum) <= first;
    }

    synchronized List<Object> all() {
        return new ArrayList<>(received);
    }

    /** Wait until "count" came or "timeout_ms" passed; answer all that came. */
    static List<Object> await(JSONObject order) throws InterruptedException {
        Kept kept = of(order.getString("name"));
        long end = System.currentTimeMillis() + order.getLongValue("timeout_ms");
        while (kept.all().size() < order.getIntValue("count") && System.currentTimeMillis() < end) {
            Thread.sleep(5);
        }
        return kept.all();
    }

    static List<Object> end(String name) {
        return ALL.remove(name).all();
    }
}
