//! Producers and push consumers by name. What is received is kept until it is asked for.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq_client_rust::{
    AclClientRPCHook, ClientConfig, ClientResult, ClientRuntime, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext, ConsumeOrderlyStatus, DefaultMQProducer, DefaultMQPushConsumer, LocalTransactionState, MQPushConsumer,
    MessageListenerConcurrently, MessageListenerOrderly, MessageQueueSelector, MessageSelector, MessageUtil, SelectMessageQueueByHash,
    SendResult, SendStatus, SessionCredentials, TransactionListener, TransactionMQProducer,
};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_model::common::message::MessageTrait;
use rocketmq_protocol::protocol::heartbeat::message_model::MessageModel;
use rocketmq_transport::api::RPCHook;
use serde_json::{json, Value};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::Failure;

const TIMEOUT_MS: u64 = 10_000;

type Kept = Arc<Mutex<Vec<Value>>>;

pub struct Clients {
    runtime: Arc<ClientRuntime>,
    producers: HashMap<String, Arc<DefaultMQProducer>>,
    loads: HashMap<String, Load>,
    deciders: HashMap<String, (TransactionMQProducer, Kept)>,
    consumers: HashMap<String, (DefaultMQPushConsumer, Kept)>,
}

impl Clients {
    pub fn new(runtime: Arc<ClientRuntime>) -> Self {
        let (producers, loads, deciders, consumers) = Default::default();
        Self { runtime, producers, loads, deciders, consumers }
    }

    pub async fn run(&mut self, order: &Value) -> Result<Value, Failure> {
        let (name, group) = (text(order, "name"), text(order, "group"));
        match text(order, "verb") {
            "producer" => self.start_producer(order).await,
            "producer.stop" => {
                let producer = self.producers.remove(group).ok_or("no such producer")?;
                Arc::into_inner(producer).ok_or("the producer is in use")?.shutdown().await;
                Ok(json!(true))
            }
            "send" => send(self.producer(order)?, order).await,
            "send.batch" => Ok(facts(&self.producer(order)?.send_batch(messages(order)?).await?)),
            "request" => request(self.producer(order)?, order).await,
            "load" => {
                self.loads.insert(group.into(), Load::start(self.producer(order)?.clone(), order.clone()));
                Ok(json!(true))
            }
            "load.count" => Ok(json!(self.loads[group].acknowledged.lock().unwrap().len())),
            "load.stop" => self.loads.remove(group).ok_or("no such load")?.finish().await,
            "tx.producer" => self.start_decider(order).await,
            "tx.send" => self.decide(order).await,
            "tx.checks" => Ok(json!(*self.deciders[name].1.lock().unwrap())),
            "tx.stop" => {
                self.deciders.remove(name).ok_or("no such producer")?.0.shutdown().await;
                Ok(json!(true))
            }
            "push" => self.push(order).await,
            "push.wait" => self.wait(order).await,
            "push.stop" => {
                let (mut consumer, kept) = self.consumers.remove(name).ok_or("no such consumer")?;
                consumer.shutdown().await;
                let received = json!(*kept.lock().unwrap());
                Ok(received)
            }
            other => Err(format!("no such verb: {other}").into()),
        }
    }

    fn producer(&self, order: &Value) -> Result<&Arc<DefaultMQProducer>, Failure> {
        Ok(self.producers.get(text(order, "group")).ok_or("no such producer")?)
    }

    async fn start_producer(&mut self, order: &Value) -> Result<Value, Failure> {
        let mut builder = DefaultMQProducer::builder(self.runtime.clone()).client_config(config(order, "producer"));
        if let Some(hook) = hook(order) {
            builder = builder.rpc_hook(hook);
        }
        let mut producer = builder.producer_group(text(order, "group")).build();
        producer.start().await?;
        self.producers.insert(text(order, "group").into(), Arc::new(producer));
        Ok(json!(true))
    }

    async fn start_decider(&mut self, order: &Value) -> Result<Value, Failure> {
        let mut builder = TransactionMQProducer::builder(self.runtime.clone()).client_config(config(order, "tx"));
        if let Some(hook) = hook(order) {
            builder = builder.rpc_hook(hook);
        }
        let checks = Kept::default();
        let listener = Decisions { checks: checks.clone() };
        let mut producer = builder.producer_group(text(order, "group")).transaction_listener(listener).build();
        producer.start().await?;
        self.deciders.insert(text(order, "name").into(), (producer, checks));
        Ok(json!(true))
    }

    async fn decide(&mut self, order: &Value) -> Result<Value, Failure> {
        let (producer, _) = self.deciders.get_mut(text(order, "name")).ok_or("no such producer")?;
        let mut results = Vec::new();
        for message in messages(order)? {
            let sent = producer.send_message_in_transaction::<(), _>(message, None).await?;
            results.push(facts(&sent.send_result.ok_or("nothing was sent")?));
        }
        Ok(json!(results))
    }

    /// "expression" are tags, "sql" is a filter; each message is refused "fails" times.
    async fn push(&mut self, order: &Value) -> Result<Value, Failure> {
        let model = if order["broadcast"] == true { MessageModel::Broadcasting } else { MessageModel::Clustering };
        let mut consumer = DefaultMQPushConsumer::builder(self.runtime.clone())
            .client_config(config(order, "consumer"))
            .message_model(model)
            .max_reconsume_times(order["reconsume_max"].as_i64().unwrap_or(-1) as i32)
            .rpc_hook(hook(order))
            .consumer_group(text(order, "group").to_string())
            .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
            .suspend_current_queue_time_millis(50)
            .build();
        let selector = match order["sql"].as_str() {
            Some(sql) => MessageSelector::by_sql(sql),
            None => MessageSelector::by_tag(order["expression"].as_str().unwrap_or("*").replace(' ', "")),  // or it hashes them
        };
        consumer.subscribe_with_selector(text(order, "topic"), Some(selector)).await?;
        let kept = Kept::default();
        let keeper = Keeper {
            kept: kept.clone(),
            seen: Mutex::default(),
            fails: order["fails"].as_u64().unwrap_or(0),
            replier: if order["replies"] == true { Some(self.producer(order)?.clone()) } else { None },
            threads: Handle::current(),
        };
        if order["orderly"] == true {
            consumer.register_message_listener_orderly(keeper);
        } else {
            consumer.register_message_listener_concurrently(keeper);
        }
        consumer.start().await?;
        self.consumers.insert(text(order, "name").into(), (consumer, kept));
        Ok(json!(true))
    }

    async fn wait(&self, order: &Value) -> Result<Value, Failure> {
        let (_, kept) = self.consumers.get(text(order, "name")).ok_or("no such consumer")?;
        let end = Instant::now() + Duration::from_millis(order["timeout_ms"].as_u64().unwrap_or(0));
        let wanted = order["count"].as_u64().unwrap_or(0) as usize;
        while kept.lock().unwrap().len() < wanted && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let received = json!(*kept.lock().unwrap());
        Ok(received)
    }
}

async fn send(producer: &DefaultMQProducer, order: &Value) -> Result<Value, Failure> {
    let mut results = Vec::new();
    for message in messages(order)? {
        let sent = if let Some(key) = order["sharding_key"].as_str() {
            let by_hash = SelectMessageQueueByHash;
            producer.send_with_selector(message, |queues, given, key: &&str| by_hash.select(queues, given, key), key).await?
        } else {
            producer.send_with_timeout(message, TIMEOUT_MS).await?
        };
        results.push(facts(&sent.ok_or("nothing was sent")?));
    }
    Ok(json!(results))
}

async fn request(producer: &DefaultMQProducer, order: &Value) -> Result<Value, Failure> {
    let answer = producer.request(message(order, 0)?, order["timeout_ms"].as_u64().unwrap_or(TIMEOUT_MS)).await?;
    Ok(json!(String::from_utf8_lossy(answer.get_body().ok_or("no body")?)))
}

/// Sends one message after another until told to stop; what fails is tried again as a new message.
struct Load {
    acknowledged: Arc<Mutex<HashMap<String, Value>>>,
    stop: Arc<AtomicBool>,
    task: JoinHandle<u64>,
}

impl Load {
    fn start(producer: Arc<DefaultMQProducer>, order: Value) -> Self {
        let (acknowledged, stop) = (Arc::<Mutex<HashMap<String, Value>>>::default(), Arc::new(AtomicBool::new(false)));
        let (kept, told) = (acknowledged.clone(), stop.clone());
        let task = tokio::spawn(async move {
            let mut failed = 0;
            for number in 0.. {
                if told.load(Ordering::Relaxed) {
                    break;
                }
                let Ok(message) = message(&order, number) else { break };
                match producer.send(message).await {
                    Ok(Some(sent)) => {
                        kept.lock().unwrap().insert(numbered(&order, "body", number), facts(&sent));
                    }
                    _ => {
                        failed += 1;
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            }
            failed
        });
        Self { acknowledged, stop, task }
    }

    async fn finish(self) -> Result<Value, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        let failed = self.task.await?;
        let facts = json!({"acknowledged": *self.acknowledged.lock().unwrap(), "failed": failed});
        Ok(facts)
    }
}

/// Keeps each message; refuses each body so many times; replies where it has a producer for that.
struct Keeper {
    kept: Kept,
    seen: Mutex<HashMap<String, u64>>,
    fails: u64,
    replier: Option<Arc<DefaultMQProducer>>,
    threads: Handle,
}

impl Keeper {
    /// Keep them, and say whether they are taken.
    fn takes(&self, messages: &[&MessageExt]) -> bool {
        self.kept.lock().unwrap().extend(messages.iter().map(|message| received(message)));
        if let Some(producer) = &self.replier {
            messages.iter().for_each(|message| self.reply(producer, message));
        }
        let mut seen = self.seen.lock().unwrap();
        let mut taken = true;
        for message in messages {
            let times = seen.entry(body(message)).or_default();
            *times += 1;
            taken &= *times > self.fails;
        }
        taken
    }

    fn reply(&self, producer: &Arc<DefaultMQProducer>, message: &MessageExt) {
        let answer = format!("answer to {}", body(message));
        let Ok(reply) = MessageUtil::create_reply_message(message.message_inner(), answer.as_bytes()) else {
            return eprintln!("no reply to {}", body(message));
        };
        let producer = producer.clone();
        self.threads.spawn(async move {
            if let Err(wrong) = producer.send(reply).await {
                eprintln!("no reply: {wrong}");
            }
        });
    }
}

impl MessageListenerConcurrently for Keeper {
    fn consume_message(&self, messages: &[&MessageExt], _: &ConsumeConcurrentlyContext) -> ClientResult<ConsumeConcurrentlyStatus> {
        Ok(if self.takes(messages) { ConsumeConcurrentlyStatus::ConsumeSuccess } else { ConsumeConcurrentlyStatus::ReconsumeLater })
    }
}

impl MessageListenerOrderly for Keeper {
    fn consume_message(&self, messages: &[&MessageExt], _: &mut ConsumeOrderlyContext) -> ClientResult<ConsumeOrderlyStatus> {
        let taken = self.takes(messages);
        Ok(if taken { ConsumeOrderlyStatus::Success } else { ConsumeOrderlyStatus::SuspendCurrentQueueAMoment })
    }
}

/// Decides as the message's properties say: "execute" after it is sent, "check" when the broker asks.
struct Decisions {
    checks: Kept,
}

impl TransactionListener for Decisions {
    fn execute_local_transaction(&self, message: &dyn MessageTrait, _: Option<&(dyn Any + Send + Sync)>) -> LocalTransactionState {
        state(message.property(&"execute".into()).unwrap_or_default().as_str())
    }

    fn check_local_transaction(&self, message: &MessageExt) -> LocalTransactionState {
        self.checks.lock().unwrap().push(received(message));
        state(message.property(&"check".into()).unwrap_or_default().as_str())
    }
}

fn state(text: &str) -> LocalTransactionState {
    match text {
        "COMMIT_MESSAGE" => LocalTransactionState::CommitMessage,
        "ROLLBACK_MESSAGE" => LocalTransactionState::RollbackMessage,
        _ => LocalTransactionState::Unknown,
    }
}

fn config(order: &Value, part: &str) -> ClientConfig {
    let mut config = ClientConfig::default();
    config.set_namesrv_addr(text(order, "nameserver").into());
    config.set_instance_name(format!("{part}-{}-{}", text(order, "group"), text(order, "name")).into());
    if let Some(namespace) = order["namespace"].as_str() {
        config.set_namespace(namespace.into());
    }
    config.set_enable_trace(order["trace"] == true);
    if order["tls"] == true {
        config.set_use_tls(true);
        config.set_tls_client_auth_server(true);
        config.set_tls_client_trust_cert_path(text(order, "ca"));
    }
    config
}

fn hook(order: &Value) -> Option<Arc<dyn RPCHook>> {
    let key = order["access_key"].as_str()?;
    Some(Arc::new(AclClientRPCHook::new(SessionCredentials::with_keys(key, text(order, "secret_key")))))
}

fn messages(order: &Value) -> Result<Vec<Message>, Failure> {
    (0..order["count"].as_u64().unwrap_or(1)).map(|number| message(order, number)).collect()
}

fn numbered(order: &Value, key: &str, number: u64) -> String {
    text(order, key).replace("{n}", &number.to_string())
}

fn message(order: &Value, number: u64) -> Result<Message, Failure> {
    let mut message = Message::builder().topic(text(order, "topic")).body(numbered(order, "body", number).into_bytes());
    if let Some(tag) = order["tag"].as_str() {
        message = message.tags(tag);
    }
    if order["keys"].is_string() {
        message = message.key(numbered(order, "keys", number));
    }
    if let Some(level) = order["level"].as_i64() {
        message = message.delay_level(level as i32);
    }
    if let Some(when_ms) = order["deliver_ms"].as_u64() {
        message = message.deliver_time_ms(when_ms);
    }
    for (name, value) in order["properties"].as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        message = message.raw_property(name.clone(), value)?;
    }
    Ok(message.build()?)
}

fn body(message: &MessageExt) -> String {
    String::from_utf8_lossy(&message.body().unwrap_or_default()).into_owned()
}

fn received(message: &MessageExt) -> Value {
    let properties: HashMap<String, String> = message.properties().iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    json!({
        "topic": message.topic().as_str(), "queue_id": message.queue_id(), "queue_offset": message.queue_offset(),
        "msg_id": message.msg_id().as_str(), "body": body(message), "tag": message.get_tags().map(|tag| tag.to_string()),
        "keys": properties.get("KEYS"), "born_ms": message.born_timestamp(), "reconsume_times": message.reconsume_times(),
        "properties": properties,
        "at_ms": SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64),
    })
}

fn facts(sent: &SendResult) -> Value {
    let status = match sent.send_status {
        SendStatus::SendOk => "SEND_OK",
        SendStatus::FlushDiskTimeout => "FLUSH_DISK_TIMEOUT",
        SendStatus::FlushSlaveTimeout => "FLUSH_SLAVE_TIMEOUT",
        SendStatus::SlaveNotAvailable => "SLAVE_NOT_AVAILABLE",
    };
    json!({
        "status": status, "msg_id": sent.msg_id.as_ref().map(|id| id.to_string()), "offset_msg_id": sent.offset_msg_id,
        "queue_id": sent.message_queue.as_ref().map(|queue| queue.queue_id()), "queue_offset": sent.queue_offset,
        "broker_name": sent.message_queue.as_ref().map(|queue| queue.broker_name().to_string()),
    })
}

fn text<'a>(order: &'a Value, key: &str) -> &'a str {
    order[key].as_str().unwrap_or_default()
}
