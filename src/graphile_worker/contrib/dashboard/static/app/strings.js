/** Words that several pages use. */

/** The states in the order of tabs, with what each means. */
export const STATES = [
  ["ready", "Ready", "Due, and free to be claimed."],
  ["waiting", "Waiting", "Due, but its named queue is locked."],
  ["running", "Running", "Locked by a worker."],
  ["scheduled", "Scheduled", "Not due yet."],
  ["retrying", "Retrying", "An attempt failed, and the next one is not due."],
  ["failed", "Failed", "Permanently failed: no attempts are left."],
  ["stale", "Stale", "Locked for more than four hours, or by a dead worker."],
];

/** Actions on jobs: what buttons and dialogs call them, and the permission that they require. */
export const ACTIONS = {
  retry: {
    label: "Retry", done: "retried", permission: "retry", states: "failed, retrying or scheduled",
    help: "The jobs run as soon as a worker is free. Permanently failed jobs start again at attempt 1.",
  },
  reschedule: {
    label: "Reschedule", done: "rescheduled", permission: "reschedule", states: "not locked by a worker",
    help: "Changes when the jobs run, or their priority.",
  },
  fail: {
    label: "Fail permanently", done: "failed permanently", permission: "fail", isDangerous: true, states: "ready, waiting, scheduled or retrying",
    help: "The jobs stay in the list as failed and never run again, unless you retry them.",
  },
  delete: {
    label: "Delete", done: "deleted", permission: "delete", isDangerous: true, states: "not locked by a worker",
    help: "The jobs are removed without being run, as if a worker had completed them. You cannot undo this.",
  },
  unlock: {
    label: "Release", done: "released", permission: "recover", isDangerous: true, states: "stale",
    help: "Removes the locks of dead workers, so the jobs run again.",
  },
};

/** Whether an error of the API is an outage, which the banner of the shell reports. */
export const isOutage = (error) => ["database_unreachable", "offline"].includes(error?.code);
