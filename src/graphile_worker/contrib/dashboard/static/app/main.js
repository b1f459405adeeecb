/** Starts the dashboard: signs in by the one-time link, reads the session, shows the shell. */
import { html, render } from "./lib.js";
import { loadSession, post } from "./api.js";
import { session } from "./state.js";
import { start } from "./live.js";
import { Shell } from "./shell.js";
import { loginError } from "./pages/login.js";

const RETRY_MS = 2000;

async function signIn(token) {
  try {
    await loadSession();
    if (token && !session.value.user) {
      await post("/login", { token });
      await loadSession();
    }
  } catch (error) {
    loginError.value = error.detail;
    if (!session.value) setTimeout(() => signIn(token), RETRY_MS);
  }
}

render(html`<${Shell} />`, document.getElementById("app"));
// The one-time token is in the fragment, which browsers never send.
const token = new URLSearchParams(location.hash.slice(1)).get("token");
if (token) history.replaceState(null, "", location.pathname + location.search);
await signIn(token);
start();
