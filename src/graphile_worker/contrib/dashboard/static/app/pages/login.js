/** Sign in: with the token or the password that the server was started with. */
import { Button, Field, Notice, html, loadSession, post, session, signal, useEffect, useRef, useState } from "../kit.js";

/** Why the last attempt failed, or why the server does not answer. */
export const loginError = signal(null);

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
      loginError.value = error.detail;
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
