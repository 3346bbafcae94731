import com.alibaba.fastjson.JSONObject;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** What signs a client's requests: an order's "access_key" and "secret_key". */
final class Access {
    private Access() {
    }

    /** Null without them: nothing is signed. */
    static RPCHook hook(JSONObject order) {
        if (!order.containsKey("access_key")) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(order.getString("access_key"), order.getString("secret_key")));
    }
}
