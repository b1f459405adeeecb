//! A worker of the Rust crate: `worker <install|add|run|once> <options as JSON>`.
//!
//! Its options and tasks are those of fleet.py and fleet.js beside it, which run the same tests in
//! their languages. `run` prints "ready" and stops at SIGTERM, `once` ends when no job is ready.

use std::env;
use std::error::Error;
use std::sync::OnceLock;
use std::time::Duration;

use graphile_worker::{
    BatchTaskHandler, DbExecutor, DbValue, IntoBatchTaskHandlerResult, IntoTaskHandlerResult,
    JobKeyMode, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, WorkerContext, WorkerOptions,
    WorkerRecoveryConfig, WorkerUtils,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Deserialize)]
#[serde(default)]
struct Options {
    url: String,
    schema: String,
    language: String,
    concurrency: usize,
    tasks: Option<Vec<String>>,
    jobs: Vec<NewJob>,
    recovery: Option<Recovery>,
    local_queue: Option<usize>,
    batch_ms: Option<u64>,
    poll_ms: u64,
    forbidden_flags: Vec<String>,
    crontab: Option<String>,
    reject_odd: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            url: String::new(),
            schema: "graphile_worker".into(),
            language: "rust".into(),
            concurrency: 1,
            tasks: None,
            jobs: Vec::new(),
            recovery: None,
            local_queue: None,
            batch_ms: None,
            // The default of the crate.
            poll_ms: 1000,
            forbidden_flags: Vec::new(),
            crontab: None,
            reject_odd: false,
        }
    }
}

/// An empty object enables recovery with the intervals of the crate.
#[derive(Clone, Deserialize)]
struct Recovery {
    heartbeat_ms: Option<u64>,
    sweep_ms: Option<u64>,
    threshold_ms: Option<u64>,
    delay_ms: Option<u64>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct NewJob {
    task: String,
    payload: Value,
    run_at: Option<String>,
    queue_name: Option<String>,
    max_attempts: Option<i16>,
    job_key: Option<String>,
    job_key_mode: Option<String>,
    priority: Option<i16>,
    flags: Option<Vec<String>>,
}

static OPTIONS: OnceLock<Options> = OnceLock::new();

fn options() -> &'static Options {
    OPTIONS.get().expect("main reads the options")
}

/// What the tests ask of a task. Payloads of other forms, for example of cron, ask for nothing.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Wishes {
    fail_first: bool,
    fail_in: Vec<String>,
    hang_in: Vec<String>,
    sleep_ms: u64,
}

async fn record(wishes: Wishes, ctx: WorkerContext) -> Result<(), String> {
    let language = &options().language;
    let attempt = *ctx.job().attempts();
    if wishes.fail_first && attempt == 1 {
        return Err("not the first time".into());
    }
    if wishes.fail_in.contains(language) {
        return Err(format!("not in {language}"));
    }
    if wishes.hang_in.contains(language) {
        // Until the test kills this process.
        tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
    }
    tokio::time::sleep(Duration::from_millis(wishes.sleep_ms)).await;
    let values = vec![
        DbValue::I64(*ctx.job().id()),
        DbValue::I32(attempt.into()),
        DbValue::Text(language.clone()),
        DbValue::Json(ctx.payload().clone()),
    ];
    let statement = "insert into ran (job, attempt, language, payload) values ($1, $2, $3, $4)";
    DbExecutor::execute(ctx.database(), statement, values.into())
        .await
        .map_err(|error| error.to_string())?;
    Ok(())
}

macro_rules! recording_tasks {
    ($($task:ident = $name:literal),*) => {
        $(
            #[derive(Deserialize, Serialize)]
            #[serde(transparent)]
            struct $task(Wishes);

            impl TaskHandler for $task {
                const IDENTIFIER: &'static str = $name;

                async fn run(self, ctx: WorkerContext) -> impl IntoTaskHandlerResult {
                    record(self.0, ctx).await
                }
            }
        )*

        fn recording_definitions() -> Vec<graphile_worker::JobDefinition> {
            vec![$($task::definition()),*]
        }
    };
}

recording_tasks!(Both = "both", RustOnly = "rust_only", Work = "work", Tick = "tick");

/// Records payloads of any form, also those that are not objects.
#[derive(Deserialize, Serialize)]
#[serde(transparent)]
struct Echo(Value);

impl TaskHandler for Echo {
    const IDENTIFIER: &'static str = "echo";

    async fn run(self, ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        record(Wishes::default(), ctx).await
    }
}

/// Of a batch, the odd numbers fail, if the options say so.
#[derive(Deserialize, Serialize)]
#[serde(transparent)]
struct Numbers(i64);

impl BatchTaskHandler for Numbers {
    const IDENTIFIER: &'static str = "numbers";

    async fn run_batch(items: Vec<Self>, ctx: WorkerContext) -> impl IntoBatchTaskHandlerResult {
        let results: Vec<Result<(), String>> = items
            .iter()
            .map(|Numbers(number)| match options().reject_odd && number % 2 != 0 {
                true => Err(format!("{number} is odd")),
                false => Ok(()),
            })
            .collect();
        if let Err(error) = record(Wishes::default(), ctx).await {
            return results.iter().map(|_| Err(error.clone())).collect();
        }
        results
    }
}

fn worker_options() -> Result<WorkerOptions, Box<dyn Error>> {
    let given = options();
    let wanted = |name: &str| {
        let names = given.tasks.as_ref();
        names.is_none_or(|names| names.iter().any(|each| each == name))
    };
    let mut definitions = recording_definitions();
    definitions.push(Echo::definition());
    definitions.push(Numbers::definition());
    definitions.retain(|each| wanted(each.identifier()));
    let mut worker = WorkerOptions::default()
        .database_url(&given.url)
        .schema(given.schema.as_str())
        .concurrency(given.concurrency)
        .poll_interval(Duration::from_millis(given.poll_ms))
        .define_jobs(definitions);
    if let Some(size) = given.local_queue {
        worker = worker.local_queue(LocalQueueConfig::default().with_size(size));
    }
    if let Some(delay) = given.batch_ms {
        worker = worker.complete_job_batch_delay(Duration::from_millis(delay));
    }
    if let Some(recovery) = &given.recovery {
        worker = worker.worker_recovery(recovery_config(recovery));
    }
    for flag in &given.forbidden_flags {
        worker = worker.add_forbidden_flag(flag);
    }
    if let Some(crontab) = &given.crontab {
        worker = worker.with_cron(crontab)?;
    }
    Ok(worker)
}

fn recovery_config(given: &Recovery) -> WorkerRecoveryConfig {
    let mut config = WorkerRecoveryConfig::default().enabled(true);
    if let Some(milliseconds) = given.heartbeat_ms {
        config = config.heartbeat_interval(Duration::from_millis(milliseconds));
    }
    if let Some(milliseconds) = given.sweep_ms {
        config = config.sweep_interval(Duration::from_millis(milliseconds));
    }
    if let Some(milliseconds) = given.threshold_ms {
        config = config.sweep_threshold(Duration::from_millis(milliseconds));
    }
    if let Some(milliseconds) = given.delay_ms {
        config = config.recovery_delay(Duration::from_millis(milliseconds));
    }
    config
}

async fn add(utils: WorkerUtils) -> Result<(), Box<dyn Error>> {
    for job in &options().jobs {
        let spec = JobSpec {
            queue_name: job.queue_name.clone(),
            // The crate has the type of a time.
            run_at: job.run_at.as_deref().map(str::parse).transpose()?,
            max_attempts: job.max_attempts,
            job_key: job.job_key.clone(),
            job_key_mode: match job.job_key_mode.as_deref() {
                None => None,
                Some("replace") => Some(JobKeyMode::Replace),
                Some("preserve_run_at") => Some(JobKeyMode::PreserveRunAt),
                Some("unsafe_dedupe") => Some(JobKeyMode::UnsafeDedupe),
                Some(other) => return Err(format!("unknown mode {other}").into()),
            },
            priority: job.priority,
            flags: job.flags.clone(),
        };
        if job.job_key.is_some() {
            utils.add_raw_job(&job.task, job.payload.clone(), spec).await?;
        } else {
            let raw = RawJobSpec {
                identifier: job.task.clone(),
                payload: job.payload.clone(),
                spec,
            };
            utils.add_raw_jobs(&[raw]).await?;
        }
    }
    Ok(())
}

async fn connect() -> Result<WorkerUtils, Box<dyn Error>> {
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(2)
        .connect(&options().url)
        .await?;
    Ok(WorkerUtils::new(pool, options().schema.as_str()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let [command, given] = <[String; 2]>::try_from(env::args().skip(1).collect::<Vec<_>>())
        .map_err(|_| "usage: worker <install|add|run|once> <options as JSON>")?;
    let _ = OPTIONS.set(serde_json::from_str(&given)?);
    match command.as_str() {
        "install" => connect().await?.migrate().await?,
        "add" => add(connect().await?).await?,
        "once" => worker_options()?.init().await?.run_once().await?,
        "run" => {
            let worker = worker_options()?.init().await?;
            println!("ready");
            worker.run().await?;
        }
        other => return Err(format!("unknown command {other}").into()),
    }
    Ok(())
}
