// What pages do by themselves; each works without it. Parts with data-live are fetched again and again while they are looked at.

const message = document.createElement("p");
message.className = "error";
message.setAttribute("role", "alert");

function tell(part, text) {
  message.textContent = text;
  if (text) part.before(message);
  else message.remove();
}

async function refresh(part) {
  if (document.hidden || part.contains(document.activeElement)) return;
  try {
    const answer = await fetch(part.dataset.live, { headers: { "X-Live": "1" }, signal: AbortSignal.timeout(10000) });
    if (answer.status === 401) return location.reload();
    const text = await answer.text();
    if (answer.ok) part.innerHTML = text;
    tell(part, answer.ok ? "" : "The cluster does not answer; what follows is older.");
  } catch {
    tell(part, "The console does not answer; what follows is older.");
  }
}

for (const part of document.querySelectorAll("[data-live]")) {
  const again = async () => {
    await refresh(part);
    setTimeout(again, Number(part.dataset.every || 2000));
  };
  setTimeout(again, Number(part.dataset.every || 2000));
}

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

// A form is sent once, however often its button is pressed.
for (const form of document.querySelectorAll("form.change")) {
  form.addEventListener("submit", (event) => {
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "1";
  });
}
addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

const menu = document.querySelector("[data-menu]");
if (menu) menu.open = matchMedia("(min-width: 48rem)").matches;
