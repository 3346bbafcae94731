// What `accessibility.py` asks a page; each question returns faults in words.
globalThis.audit = (() => {
  const BUTTONS = "[type=submit], [type=button], [type=reset], [type=image]";
  const NAMED = `a[href], button, summary, [role=button], [role=link], input:is(${BUTTONS})`;
  const TYPED = `input:not([type=hidden], ${BUTTONS}), select, textarea`;
  const STOPS = "a[href], button, input, select, textarea, summary, [tabindex], [contenteditable]";
  const UNREAD = "script, style, noscript, title, option, textarea, [aria-disabled=true], :disabled"; // or has no contrast to keep
  const CONTRAST_MIN = 4.5;

  const visible = (element) => element.checkVisibility({ visibilityProperty: true });
  const all = (selector) => [...document.querySelectorAll(selector)].filter(visible);
  const one = (text) => text.replace(/\s+/g, " ").trim();
  const referred = (element) => (element.ariaLabelledByElements ?? []).map((other) => other.textContent).join(" ");
  const inner = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return node.data;
    if (node.nodeType !== Node.ELEMENT_NODE || node.ariaHidden === "true" || node.matches("select, textarea, input")) return "";
    return node.ariaLabel || node.alt || [...node.childNodes].map(inner).join(" ");
  };
  const shown = (element) => one(referred(element) || inner(element) || element.alt || element.value || "");
  const labelled = (element) => one(referred(element) || element.ariaLabel || [...element.labels].map(inner).join(" "));
  const what = (element) => {
    const text = element.matches(TYPED) ? "" : one(element.textContent).slice(0, 40);
    const words = text || element.id || element.getAttribute("name") || element.getAttribute("href");
    return `<${element.localName}>` + (words ? ` "${words}"` : "");
  };

  const page = () => [
    ...(document.documentElement.lang ? [] : ["the page has no language"]),
    ...(one(document.title) ? [] : ["the page has no title"]),
  ];

  const headings = () => {
    const found = all("h1, h2, h3, h4, h5, h6");
    const level = (heading) => (heading ? Number(heading.localName[1]) : 0);
    const count = found.filter((heading) => level(heading) === 1).length;
    const skipped = found.filter((heading, at) => level(heading) > level(found[at - 1]) + 1);
    return [...(count === 1 ? [] : [`the page has ${count} <h1>`]), ...skipped.map((heading) => `${what(heading)} skips a level`)];
  };

  const names = () => [
    ...all(TYPED).filter((element) => !labelled(element)).map((element) => `${what(element)} has no label`),
    ...all(NAMED).filter((element) => !shown(element)).map((element) => `${what(element)} has no name`),
    ...all("img").filter((image) => !image.hasAttribute("alt")).map((image) => `<img> ${image.getAttribute("src")} has no alt`),
    ...all("svg:not([aria-hidden=true])").filter((drawing) => !shown(drawing)).map(() => "<svg> has no name and is not hidden"),
  ];

  const tables = () =>
    all("table").flatMap((table) => {
      const headers = [...table.querySelectorAll("th")];
      const bare = headers.filter((header) => !["col", "row", "colgroup", "rowgroup"].includes(header.scope));
      return headers.length ? bare.map((header) => `${what(header)} has no scope`) : [`${what(table)} has no headers`];
    });

  // Colours of any notation become four numbers, up to 255, by painting them.
  const brush = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const painted = new Map();
  const rgba = (colour) => {
    if (!painted.has(colour)) {
      brush.clearRect(0, 0, 1, 1);
      brush.fillStyle = colour;
      brush.fillRect(0, 0, 1, 1);
      painted.set(colour, [...brush.getImageData(0, 0, 1, 1).data]);
    }
    return painted.get(colour);
  };
  const over = (upper, alpha, lower) => lower.map((value, at) => upper[at] * alpha + value * (1 - alpha));
  const luminance = (colour) => {
    const [red, green, blue] = colour.map((value) => (value <= 10.31475 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const chain = (element) => (element ? [element, ...chain(element.parentElement)] : []);
  const canvas = () => {
    const probe = document.documentElement.appendChild(document.createElement("i"));
    probe.style.backgroundColor = "Canvas";
    const colour = getComputedStyle(probe).backgroundColor;
    probe.remove();
    return rgba(colour).slice(0, 3);
  };
  const ratio = (element, colour, base) => {
    const ground = chain(element).reverse().reduce((lower, each) => {
      const upper = rgba(getComputedStyle(each).backgroundColor);
      return over(upper, upper[3] / 255, lower);
    }, base);
    const opacity = chain(element).reduce((product, each) => product * getComputedStyle(each).opacity, 1);
    const ink = rgba(colour);
    const [low, high] = [luminance(ground), luminance(over(ink, (ink[3] / 255) * opacity, ground))].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const inks = () => {
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const parent = walker.currentNode.parentElement;
      if (!one(walker.currentNode.data) || !visible(parent) || parent.closest(UNREAD)) continue;
      const style = getComputedStyle(parent);
      found.push([parent, parent instanceof SVGElement ? style.fill : style.color, one(walker.currentNode.data)]);
    }
    for (const field of all(TYPED).filter((each) => !each.matches(":disabled, [type=checkbox], [type=radio], [type=range]"))) {
      const empty = field.placeholder && !field.value;
      const colour = getComputedStyle(field, empty ? "::placeholder" : null).color;
      found.push([field, colour, empty ? field.placeholder : field.value || labelled(field)]);
    }
    return found;
  };
  const contrast = () => {
    const base = canvas();
    const faults = new Map(); // one for all texts of the same colours
    for (const [element, colour, text] of inks()) {
      const value = ratio(element, colour, base);
      if (value < CONTRAST_MIN) faults.set(`${colour} ${value}`, `"${text.slice(0, 40)}" has a contrast of ${value.toFixed(2)}`);
    }
    return [...faults.values()];
  };

  const overflow = () => {
    const width = document.documentElement.clientWidth;
    const cut = (each) => each !== document.body && (getComputedStyle(each).overflowX !== "visible" || cut(each.parentElement));
    const wide = all("body *").filter((each) => each.getBoundingClientRect().right > width + 0.5 && !cut(each.parentElement));
    const inmost = wide.filter((element) => !wide.some((other) => other !== element && element.contains(other)));
    const faults = inmost.slice(0, 3).map((element) => `${what(element)} reaches beyond ${width} px`);
    return faults.length || document.documentElement.scrollWidth <= width ? faults : [`the page is wider than ${width} px`];
  };

  // A way through the page by Tab: `start` returns how often it has to be pressed, `end` what was not reached so, or not seen; null
  // where the page renewed a part of itself meanwhile.
  let stops, plain, reached;
  const look = (element) => {
    const style = getComputedStyle(element);
    const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 && rgba(style.outlineColor)[3] > 0;
    return [ring && style.outline, style.boxShadow, style.border, style.backgroundColor, style.color, style.textDecoration].join();
  };
  const note = (event) => reached.push([event.target, look(event.target)]);
  const start = () => {
    document.activeElement.blur();
    const group = (radio) => all("[type=radio]").filter((each) => each.name === radio.name && each.form === radio.form);
    const chosen = (radio) => group(radio).find((each) => each.checked) ?? group(radio)[0]; // the others are for the arrow keys
    stops = all(STOPS).filter((each) => !each.matches(":disabled, [tabindex='-1']") && !each.closest("[inert]"));
    stops = stops.filter((each) => each.type !== "radio" || each === chosen(each));
    plain = new Map(stops.map((each) => [each, look(each)]));
    reached = [];
    const begin = document.body.insertAdjacentElement("afterbegin", document.createElement("i"));
    begin.tabIndex = -1;
    begin.focus();
    begin.remove();
    document.addEventListener("focusin", note);
    const scrolls = (each) => /auto|scroll/.test(getComputedStyle(each).overflow);
    return stops.length + all("body *").filter(scrolls).length; // what scrolls may be a stop, too
  };
  const end = () => {
    document.removeEventListener("focusin", note);
    if (stops.some((each) => !each.isConnected)) return null;
    const looks = new Map(reached.toReversed()); // of each the first time
    const way = [...new Set(reached.map(([element]) => element))].filter((each) => plain.has(each));
    const expected = stops.filter((each) => looks.has(each));
    const turn = expected.findIndex((each, at) => each !== way[at]);
    return [
      ...stops.filter((each) => !looks.has(each)).map((each) => `${what(each)} cannot be reached with Tab`),
      ...(turn < 0 ? [] : [`Tab reaches ${what(way[turn])} before ${what(expected[turn])}`]),
      ...expected.filter((each) => looks.get(each) === plain.get(each)).map((each) => `the focus on ${what(each)} cannot be seen`),
    ];
  };

  return { structure: () => [page, headings, names, tables].flatMap((question) => question()), contrast, overflow, start, end };
})();
