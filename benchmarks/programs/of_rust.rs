//! Graphile Worker RS: `of_rust <batched|direct|add|ping>`, told by the environment as the programs
//! of the other queues are.
//!
//! `batched` has the settings that its documentation and its own benchmarks give for many small
//! jobs: a local queue, batched completions, and a poll interval of 10 ms, as one of its slots that
//! found no job waits for the next poll or notification.

use std::env;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, WorkerContext,
    WorkerOptions, WorkerUtils,
};
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};

static RAN: AtomicU64 = AtomicU64::new(0);

fn number(name: &str) -> u64 {
    let text = env::var(format!("BENCH_{name}")).expect("the benchmark sets it");
    text.parse().expect("a number")
}

fn say(facts: Value) {
    // One call for each line: other programs read them as they come.
    println!("{facts}");
}

/// The clock that all programs of a machine share, in nanoseconds.
fn monotonic() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to the local variable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn cpu_seconds() -> f64 {
    // SAFETY: zeros are a valid value, and getrusage writes to the local variable.
    let used = unsafe {
        let mut used: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut used);
        used
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(used.ru_utime) + seconds(used.ru_stime)
}

#[derive(Deserialize, Serialize)]
struct Noop {
    #[allow(dead_code)]
    id: i64,
}

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        let ran = RAN.fetch_add(1, Ordering::Relaxed) + 1;
        if ran == 1 {
            say(json!({"first": monotonic(), "cpu": cpu_seconds()}));
        }
        if ran == number("JOBS") {
            say(json!({"last": monotonic()}));
        }
    }
}

#[derive(Deserialize, Serialize)]
struct Ping {
    sent: u64,
}

impl TaskHandler for Ping {
    const IDENTIFIER: &'static str = "ping";

    async fn run(self, _ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        say(json!({"late": monotonic() - self.sent}));
    }
}

async fn work(batched: bool) -> Result<(), Box<dyn Error>> {
    let mut options = WorkerOptions::default()
        .database_url(&env::var("BENCH_DSN")?)
        .concurrency(number("CONCURRENCY") as usize)
        .define_job::<Noop>()
        .define_job::<Ping>();
    if batched {
        options = options
            .local_queue(LocalQueueConfig::default().with_size(number("BATCH") as usize))
            .complete_job_batch_delay(Duration::from_millis(1))
            .poll_interval(Duration::from_millis(10));
    }
    options.init().await?.run().await?;
    Ok(())
}

async fn connect() -> Result<WorkerUtils, Box<dyn Error>> {
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(1)
        .connect(&env::var("BENCH_DSN")?)
        .await?;
    Ok(WorkerUtils::new(pool, "graphile_worker"))
}

async fn add() -> Result<(), Box<dyn Error>> {
    let (jobs, batch) = (number("JOBS"), number("BATCH"));
    let utils = connect().await?;
    let one = |id: u64| utils.add_raw_job("noop", json!({"id": id}), JobSpec::default());
    one(0).await?;
    let began = Instant::now();
    for id in 0..batch {
        one(id).await?;
    }
    let one_by_one = batch as f64 / began.elapsed().as_secs_f64();
    let began = Instant::now();
    for first in (0..jobs).step_by(batch as usize) {
        let specs: Vec<RawJobSpec> = (first..first + batch)
            .map(|id| RawJobSpec {
                identifier: "noop".into(),
                payload: json!({"id": id}),
                spec: JobSpec::default(),
            })
            .collect();
        utils.add_raw_jobs(&specs).await?;
    }
    let in_batches = jobs as f64 / began.elapsed().as_secs_f64();
    say(json!({"one_by_one": one_by_one, "in_batches": in_batches}));
    Ok(())
}

/// Single jobs with pauses, as ours_pinging.py adds them.
async fn ping() -> Result<(), Box<dyn Error>> {
    let utils = connect().await?;
    for _ in 0..number("JOBS") {
        utils
            .add_raw_job("ping", json!({"sent": monotonic()}), JobSpec::default())
            .await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Installs the schema, as every worker does at its start.
async fn install() -> Result<(), Box<dyn Error>> {
    connect().await?.migrate().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    match env::args().nth(1).as_deref() {
        Some("batched") => work(true).await,
        Some("direct") => work(false).await,
        Some("add") => add().await,
        Some("ping") => ping().await,
        Some("install") => install().await,
        _ => Err("usage: of_rust <batched|direct|add|ping|install>".into()),
    }
}
