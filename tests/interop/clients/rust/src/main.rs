//! The Rust client, told what to do over standard input: one JSON object a line with a "verb", answered by one JSON object a line.

mod clients;

use std::io::{BufRead, Write};

use rocketmq_client_rust::{ClientRuntime, ClientRuntimeConfig};
use rocketmq_observability::TelemetryRuntimeGuard;
use rocketmq_runtime::RuntimeOwner;
use serde_json::{json, Value};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let owner = RuntimeOwner::new()?;
    let telemetry = TelemetryRuntimeGuard::noop();
    let context = owner.root_context().component("peer");
    let runtime = ClientRuntime::try_new(context, ClientRuntimeConfig::default(), telemetry.handle())?;
    let mut clients = clients::Clients::new(runtime);
    let mut answers = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let order: Value = serde_json::from_str(&line?)?;
        let answer = match owner.block_on(clients.run(&order)) {
            Ok(result) => json!({"result": result}),
            Err(wrong) => json!({"error": "ClientError", "text": wrong.to_string()}),
        };
        writeln!(answers, "{answer}")?;
        answers.flush()?;
    }
    std::process::exit(0)
}
