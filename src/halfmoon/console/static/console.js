// What pages do by themselves; each works without it. Parts with data-live are fetched again and again while they are looked at.

function tell(place, text) {
  place.told ??= Object.assign(document.createElement("p"), { className: "error", role: "alert" });
  place.told.textContent = text;
  if (text) place.before(place.told);
  else place.told.remove();
}

// Whether somebody has the focus in a part or marks its text: either would be lost.
function inUse(part) {
  const marked = getSelection();
  return part.contains(document.activeElement) || (!marked.isCollapsed && marked.containsNode(part, true));
}

async function refresh(part) {
  if (document.hidden || inUse(part)) return;
  try {
    const answer = await fetch(part.dataset.live, { headers: { "X-Live": "1" }, signal: AbortSignal.timeout(10000) });
    if (answer.status === 401) return location.reload();
    const text = await answer.text();
    if (inUse(part)) return;
    const scrolled = [...part.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    if (answer.ok) part.innerHTML = text;
    part.querySelectorAll(".scroll").forEach((each, at) => { each.scrollLeft = scrolled[at] || 0; });
    const why = answer.status === 502 ? "the cluster does not answer." : "reload the page to see why.";
    tell(part, answer.ok ? "" : `What follows is older: ${why}`);
  } catch {
    tell(part, "What follows is older: the console does not answer.");
  }
}

for (const part of document.querySelectorAll("[data-live]")) {
  const again = () => setTimeout(() => refresh(part).then(again), part.dataset.every);
  again();
}

// The token of the session that there is now; empty: there is none.
async function token() {
  const page = new DOMParser().parseFromString(await (await fetch("/password")).text(), "text/html");
  return page.querySelector(".who [name=csrf]")?.value ?? "";
}

// A form is sent once, however often its button is pressed. A refusal is said above it, and what was typed stays.
for (const form of document.querySelectorAll("form.change")) {
  let isOver = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (form.ariaBusy) return;
    form.ariaBusy = "true";
    document.querySelector(".notice")?.remove();
    tell(form, "");
    try {
      if (isOver) form.elements.csrf.value = await token();
      const body = new URLSearchParams(new FormData(form));
      const answer = await fetch(form.action, { method: "POST", body, headers: { Accept: "application/json" } });
      if (answer.status === 201) return location.assign(answer.headers.get("Location"));
      isOver = answer.status === 401;
      tell(form, isOver ? "Your session is over: log in in another tab, then send this again." : (await answer.json()).error);
      const isRefused = answer.status < 500; // else it may have been carried out: the next try says so
      if (isRefused) form.elements.once.value = crypto.getRandomValues(new Uint32Array(4)).join("-");
    } catch {
      tell(form, "The console does not answer: whether this was carried out is not known.");
    }
    form.ariaBusy = null;
  });
}
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

// A button that deletes waits until the name is typed; the console checks it again.
for (const box of document.querySelectorAll("[data-typed]")) {
  const button = box.form.querySelector("button");
  const check = () => { button.disabled = box.value !== box.dataset.typed; };
  box.addEventListener("input", check);
  check();
}

// All boxes of a column with one.
for (const all of document.querySelectorAll("[data-all]")) {
  all.addEventListener("change", () => {
    for (const box of document.querySelectorAll(`input[name="${all.dataset.all}"]`)) box.checked = all.checked;
  });
}

const menu = document.querySelector("[data-menu]");
if (menu) menu.open = matchMedia("(min-width: 48rem)").matches;
