"""A program that adds jobs and runs them elsewhere; it knows nothing of tests."""

from datetime import timedelta

from graphile_worker import App, SyncJobContext

app = App()
sent: list[tuple[str, str]] = []


@app.task
async def send_email(to: str, subject: str = "Hello") -> None:
    sent.append((to, subject))


@app.task(max_attempts=3)
def charge(ctx: SyncJobContext, order_id: int) -> None:
    if order_id < 0:
        raise LookupError(f"no order {order_id}")
    ctx.add_job("send_email", {"to": "ada", "subject": f"Order {order_id}"})


def sign_up(name: str) -> None:
    send_email.enqueue(to=name)
    send_email.using(run_at=timedelta(days=1), queue_name="reminders").enqueue(name, "Still there?")
