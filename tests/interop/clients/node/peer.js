'use strict';

// Aliyun's Node client, told what to do over standard input: one JSON object a line with a "verb", answered by one JSON object a
// line, in order. It decides nothing: what the answers should be is for the caller to say. One process serves one cluster: the
// client keeps a producer of its own, with which it sends messages back, and which is that of the first name server it was given.

const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const producers = new Map();
const loads = new Map();
const receivers = new Map();
const logger = { debug() {}, info() {}, warn: (...words) => console.error(...words), error: (...words) => console.error(...words) };
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

function options(order) {
  const found = { httpclient: {}, nameSrv: order.nameserver, namespace: order.namespace || '', logger };
  if (order.routes_ms) found.pollNameServerInteval = order.routes_ms;  // the name that the client gives it
  return order.access_key ? { ...found, accessKey: order.access_key, secretKey: order.secret_key } : found;
}

function message(order, number) {
  const numbered = text => text.replaceAll('{n}', number);
  const made = new Message(order.topic, order.tag || '', numbered(order.body));
  if (order.keys) made.keys = numbered(order.keys).split(' ');
  if (order.sharding_key) made.shardingKey = order.sharding_key;
  if (order.level) made.delayTimeLevel = order.level;
  if (order.deliver_ms) made.setStartDeliverTime(order.deliver_ms);
  Object.assign(made.properties, order.properties);
  return made;
}

function sent(result) {
  return {
    status: result.sendStatus, offset_msg_id: result.msgId, queue_id: Number(result.messageQueue.queueId),
    broker_name: result.messageQueue.brokerName, queue_offset: result.queueOffset,
  };
}

function received(from) {
  return {
    topic: from.topic, queue_id: from.queueId, queue_offset: Number(from.queueOffset), msg_id: from.msgId, tag: from.tags,
    body: from.body.toString(), keys: from.keys, born_ms: Number(from.bornTimestamp), reconsume_times: from.reconsumeTimes,
    properties: from.properties, at_ms: Date.now(),
  };
}

async function run(load, order) {
  let last = performance.now();
  for (let i = 0; !load.stop; i++) {
    await sleep(order.pause_ms || 0);
    const made = message(order, i);
    try {
      load.acknowledged[made.body.toString()] = sent(await producers.get(order.group).send(made));
      load.longest_ms = Math.max(load.longest_ms, performance.now() - last);  // between two that were acknowledged
      last = performance.now();
    } catch (refused) {
      load.failed++;
      await sleep(20);
    }
  }
}

const verbs = {
  async producer(order) {
    const made = new Producer({ ...options(order), producerGroup: order.group, instanceName: `producer-${order.group}` });
    made.on('error', wrong => console.error(wrong));
    await made.ready();
    producers.set(order.group, made);
    return true;
  },

  async 'producer.stop'(order) {
    await producers.get(order.group).close();
    return producers.delete(order.group);
  },

  async send(order) {
    const results = [];
    for (let i = 0; i < Math.max(1, order.count || 0); i++) {
      results.push(sent(await producers.get(order.group).send(message(order, i))));
    }
    return results;
  },

  // Sends one message after another until told to stop; what fails is tried again as a new message.
  async load(order) {
    const load = { acknowledged: {}, failed: 0, longest_ms: 0, stop: false };
    load.done = run(load, order);
    loads.set(order.group, load);
    return true;
  },

  async 'load.count'(order) {
    return Object.keys(loads.get(order.group).acknowledged).length;
  },

  async 'load.stop'(order) {
    const load = loads.get(order.group);
    load.stop = true;
    await load.done;
    return { acknowledged: load.acknowledged, failed: load.failed, longest_ms: load.longest_ms };
  },

  // What a consumer receives is kept until it is asked for; each message fails "fails" times before it succeeds.
  async push(order) {
    const made = new Consumer({
      ...options(order), consumerGroup: order.group, instanceName: `consumer-${order.name}`, isBroadcast: Boolean(order.broadcast),
      consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET', rebalanceInterval: 1000,
      ...('reconsume_max' in order ? { maxReconsumeTimes: order.reconsume_max } : {}),
    });
    const found = { made, received: [], failures: new Map() };
    made.on('error', wrong => console.error(wrong));
    const wanted = order.sql ? { expressionType: 'SQL92', subString: order.sql } : order.expression || '*';
    made.subscribe(order.topic, wanted, async from => {
      const facts = received(from);
      found.received.push(facts);
      const failures = (found.failures.get(facts.body) || 0) + 1;
      found.failures.set(facts.body, failures);
      if (failures <= (order.fails || 0)) throw new Error('fails as it was told to');  // ACTION_RETRY is lost where it comes again
    });
    receivers.set(order.name, found);
    await made.ready();
    return true;
  },

  // Waits until "count" messages came or "timeout_ms" passed, and answers with all that came.
  async 'push.wait'(order) {
    const { received } = receivers.get(order.name);
    const end = Date.now() + order.timeout_ms;
    while (received.length < order.count && Date.now() < end) await sleep(5);
    return received;
  },

  async 'push.stop'(order) {
    const found = receivers.get(order.name);
    receivers.delete(order.name);
    await found.made.close();
    return found.received;
  },
};

async function answer(line) {
  const order = JSON.parse(line);
  try {
    if (!verbs[order.verb]) throw new Error(`no such verb: ${order.verb}`);
    return { result: await verbs[order.verb](order) };
  } catch (wrong) {
    return { error: wrong.name, text: wrong.message, code: wrong.code };
  }
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    process.stdout.write(JSON.stringify(await answer(line)) + '\n');
  }
  process.exit(0);
}

main();
