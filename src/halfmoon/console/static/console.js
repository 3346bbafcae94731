// What pages do by themselves; each works without it. Parts with data-live are fetched again and again while they are looked at.

function tell(place, text) {
  place.told ??= Object.assign(document.createElement("p"), { className: "error", role: "alert" });
  place.told.textContent = text;
  if (text) place.before(place.told);
  else place.told.remove();
}

// Whether somebody has the focus in a part, points at a chart of it or marks its text: each would be lost.
function inUse(part) {
  const marked = getSelection();
  return part.contains(document.activeElement) || part.querySelector(".chart svg:hover") || (!marked.isCollapsed && marked.containsNode(part, true));
}

// Of a part that renews itself, a screen reader hears what stands under data-news, when that changes.
function hear(part) {
  const news = part.querySelector("[data-news]")?.textContent.replace(/\s+/g, " ").trim();
  if (part.news !== undefined && part.news !== news) document.getElementById("news").textContent = news ?? "";
  part.news = news;
}

async function refresh(part) {
  if (document.hidden || inUse(part)) return;
  try {
    const answer = await fetch(part.dataset.live, { headers: { "X-Live": "1" }, signal: AbortSignal.timeout(10000) });
    if (answer.status === 401) return location.reload();
    const text = await answer.text();
    if (inUse(part)) return;
    const scrolled = [...part.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    if (answer.ok) {
      part.innerHTML = text;
      dress(part);
      hear(part);
    }
    part.querySelectorAll(".scroll").forEach((each, at) => { each.scrollLeft = scrolled[at] || 0; });
    const why = answer.status === 502 ? "the cluster does not answer." : "reload the page to see why.";
    tell(part, answer.ok ? "" : `What follows is older: ${why}`);
  } catch {
    tell(part, "What follows is older: the console does not answer.");
  }
}

for (const part of document.querySelectorAll("[data-live]")) {
  hear(part);
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


// An id is copied by the button beside it, which in tables is not a stop of the Tab key: the page of the thing has it, too.
function dress(root) {
  for (const id of root.querySelectorAll("[data-copy]")) {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "copy" });
    button.title = button.ariaLabel = "Copy the id";
    if (id.closest("table")) button.tabIndex = -1;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(id.dataset.copy);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(id);
        button.textContent = "Marked";
      }
      setTimeout(() => { button.textContent = ""; }, 1500);
    });
    (id.closest("a") ?? id).after(button);
  }
}
dress(document);

// Distances in time go on with the clock of the console.
const skew = Date.now() - document.documentElement.dataset.now;
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
function ago(ms) {
  const past = Date.now() - skew - ms, seconds = Math.floor(Math.abs(past) / 1000);
  const [size, unit] = UNITS.find(([each]) => seconds >= each) ?? [1, ""];
  const count = Math.floor(seconds / size).toLocaleString("en-US");
  return !unit ? "now" : past > 0 ? `${count} ${unit} ago` : `in ${count} ${unit}`;
}
setInterval(() => {
  if (!document.hidden) document.querySelectorAll("time[data-ago]").forEach((each) => { each.textContent = ago(Date.parse(each.dateTime)); });
}, 5000);

// The values of a chart under the pointer stand beside its title.
const texts = {
  share: (value) => `${Math.round(value * 100)}%`,
  count: (value) => value.toLocaleString("en-US", { maximumFractionDigits: 0 }),
  number: (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 3 }),
};
function point(event) {
  const drawing = event.target.closest?.(".chart[data-chart] > svg");
  for (const old of document.querySelectorAll(".chart output, .chart .cursor")) old.remove();
  if (!drawing) return;
  const { span, unit, labels, values } = JSON.parse(drawing.parentElement.dataset.chart);
  const box = drawing.getBoundingClientRect(), last = values[0].length - 1;
  const at = Math.round(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * last);
  const nearest = (line) => line.slice(0, at + 1).findLast((value) => value !== null) ?? line.find((value) => value !== null);
  const time = new Date(span[0] + ((span[1] - span[0]) * at) / last).toISOString().slice(11, 19);
  const said = labels.map((label, index) => {
    const value = nearest(values[index]);
    return `${label} ${value === undefined ? "-" : texts[unit](value)}`;
  });
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const plot = drawing.querySelector(".plot"), { width, height } = plot.viewBox.baseVal;
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("d", `M${(at / last) * width} 0V${height}`);
  plot.append(cursor);
  drawing.parentElement.querySelector("figcaption").append(Object.assign(document.createElement("output"), { textContent: `${time} UTC: ${said.join(", ")}` }));
}
document.addEventListener("pointermove", point);
document.addEventListener("pointerdown", point);

// Whether the side bar is collapsed is remembered for the next page.
document.querySelector(".rail")?.addEventListener("toggle", (event) => {
  document.cookie = `halfmoon-side=${event.target.open ? "open" : "collapsed"}; path=/; max-age=31536000; SameSite=Strict`;
});

// What opens below its button closes by Escape and by a click elsewhere.
addEventListener("keydown", (event) => {
  const open = event.key === "Escape" && document.querySelector(".drop[open]");
  if (open) {
    open.open = false;
    open.querySelector("summary").focus();
  }
});
addEventListener("click", (event) => {
  for (const drop of document.querySelectorAll(".drop[open]")) if (!drop.contains(event.target)) drop.open = false;
});
