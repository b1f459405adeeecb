/** Sign in: with the token or the password that the server was started with. */
import { html, signal, useEffect, useRef, useState } from "../lib.js";
import { loadSession, post } from "../api.js";
import { session } from "../state.js";
import { Button, Field, Notice } from "../ui/index.js";

/** Why the last attempt failed, or why the server does not answer. */
export const loginError = signal(null);

const ERRORS = {
  unauthenticated: "These credentials are not valid. A link works once, for 10 minutes.",
  too_many_attempts: "Too many attempts. Wait a minute, then try again.",
};

export default function Login() {
  const methods = session.value?.login ?? [];
  const [isPassword, setPassword] = useState(methods.includes("password"));
  const [isBusy, setBusy] = useState(false);
  const form = useRef(null);
  useEffect(() => form.current?.querySelector("input").focus(), []);

  async function submit(event) {
    event.preventDefault();
    setBusy(true);
    loginError.value = null;
    try {
      await post("/login", Object.fromEntries(new FormData(form.current)));
      await loadSession();
    } catch (error) {
      loginError.value = ERRORS[error.code] ?? error.detail;
      const secret = form.current.querySelector("input[type=password]");
      secret.value = "";
      secret.focus();
    }
    setBusy(false);
  }

  if (!methods.length) {
    return html`<div class="panel-body stack"><h1>Sign in</h1>
      <p>This dashboard uses the accounts of the application that serves it. Sign in there, then reload this page.</p>
      <${Button} kind="primary" onClick=${() => location.reload()}>Reload<//></div>`;
  }
  return html`<form class="panel-body stack" onSubmit=${submit} ref=${form}>
    ${session.value?.has_expired
      ? html`<p>Sign in again to continue. The page behind this dialog keeps its state.</p>`
      : html`<h1>Sign in</h1>`}
    ${loginError.value && html`<${Notice} kind="error">${loginError.value}<//>`}
    ${isPassword
      ? html`<${Field} label="User"><input class="input" name="user" autocomplete="username" /><//>
          <${Field} label="Password"><input class="input" type="password" name="password" autocomplete="current-password" required /><//>`
      : html`<${Field} label="Token" help="graphile-worker dashboard prints a one-time link with a token.">
          <input class="input" type="password" name="token" autocomplete="off" required /><//>`}
    <div class="actions">
      <${Button} kind="primary" type="submit" disabledReason=${isBusy ? "Signing in" : null}>Sign in<//>
      ${methods.length > 1 && html`<${Button} kind="quiet" onClick=${() => setPassword(!isPassword)}>
        Use a ${isPassword ? "token" : "password"}<//>`}
    </div>
  </form>`;
}
