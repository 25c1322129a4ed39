"use strict";
/* Draws what weft wrote beside it. Every text is set as text; the page loads nothing.
   The part of the address after # may say what to show: view=program&find=matmul&open=all */
(() => {
  const GAP_X = 18, GAP_Y = 36, PAD = 12, SWEEPS = 6, READABLE = 0.6, MANY = 12;
  const byId = (id) => document.getElementById(id);
  const scenes = JSON.parse(byId("graph").textContent);
  const stage = byId("stage"), world = byId("world");
  const camera = { x: 0, y: 0, zoom: 1 };
  let scene = null, chosen = null, hits = [], current = -1;

  window.addEventListener("error", (event) => {
    document.documentElement.dataset.error = event.message;
  });

  function make(tag, className, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  /* -- sizes and places ------------------------------------------------------------------ */

  function prepare(each) {
    each.boxes.forEach((box, number) => { box.number = number; });
    each.root.number = -1;
    for (const holder of [each.root, ...each.boxes]) {
      if (!holder.rows) continue;
      holder.children = holder.rows.map((row) => row.map((number) => each.boxes[number]));
      holder.near = new Map();
      for (const [a, b] of holder.links) {
        for (const [key, other] of [["d" + b, a], ["u" + a, b]]) {
          if (!holder.near.has(key)) holder.near.set(key, []);
          holder.near.get(key).push(each.boxes[other]);
        }
      }
    }
  }

  /* The places nearest to `wanted` that keep the order and the gaps: isotonic regression. */
  function spread(row, wanted) {
    const blocks = [];
    let offset = 0;
    row.forEach((box, index) => {
      blocks.push({ sum: wanted[index] - offset, count: 1 });
      offset += box.W + GAP_X;
      while (blocks.length > 1) {
        const last = blocks[blocks.length - 1], before = blocks[blocks.length - 2];
        if (before.sum / before.count <= last.sum / last.count) break;
        before.sum += last.sum;
        before.count += last.count;
        blocks.pop();
      }
    });
    let index = 0;
    offset = 0;
    for (const block of blocks) {
      for (let k = 0; k < block.count; k++, index++) {
        row[index].x = block.sum / block.count + offset;
        offset += row[index].W + GAP_X;
      }
    }
  }

  function settle(holder, down) {
    const rows = down ? holder.children : [...holder.children].reverse();
    for (const row of rows) {
      spread(row, row.map((box) => {
        const near = holder.near.get((down ? "d" : "u") + box.number);
        if (!near) return box.x;
        const middle = near.reduce((sum, other) => sum + other.x + other.W / 2, 0) / near.length;
        return middle - box.W / 2;
      }));
    }
  }

  function measure(box) {
    if (!box.children || !box.open) {
      box.W = box.w;
      box.H = box.h;
      return;
    }
    const all = box.children.flat();
    all.forEach(measure);
    for (const row of box.children) {
      const width = row.reduce((sum, child) => sum + child.W + GAP_X, -GAP_X);
      let x = -width / 2;
      for (const child of row) {
        child.x = x;
        x += child.W + GAP_X;
      }
    }
    for (let sweep = 0; sweep < SWEEPS; sweep++) settle(box, sweep % 2 === 0);
    const left = Math.min(...all.map((child) => child.x));
    const inner = Math.max(...all.map((child) => child.x + child.W)) - left;
    box.W = Math.max(box.w, inner + 2 * PAD);
    let y = box.h + 4;
    for (const row of box.children) {
      for (const child of row) {
        child.x += (box.W - inner) / 2 - left;
        child.y = y;
      }
      y += Math.max(...row.map((child) => child.H)) + GAP_Y;
    }
    box.H = y - GAP_Y + PAD;
  }

  /* -- drawing --------------------------------------------------------------------------- */

  /* Lines of a graph lie over its kernels and under its calls, so none crosses a subgraph. */
  function place(holder, x, y, depth) {
    for (const child of holder.children.flat()) {
      child.X = x + child.x;
      child.Y = y + child.y;
      child.depth = depth + (child.kind === "body" ? 1 : 0);
      child.element = draw(child);
      world.append(child.element);
      if (child.children && child.open) place(child, child.X, child.Y, child.depth);
    }
  }

  function draw(box) {
    const folds = Boolean(box.children);
    const element = make("div", "box " + box.kind + (folds && box.open ? " open" : ""));
    element.dataset.number = box.number;
    element.style.left = box.X + "px";
    element.style.top = box.Y + "px";
    element.style.width = box.W + "px";
    element.style.height = box.H + "px";
    const layer = box.kind === "body" ? 0 : box.kind === "kernel" && box.open ? 1 : 3;
    element.style.zIndex = 4 * box.depth + layer;
    box.text.forEach((line, index) => element.append(make("div", index ? "faint" : "", line)));
    if (folds) {
      const button = make("button", "", box.open ? "−" : "+");
      button.title = box.open ? "fold" : "unfold";
      button.addEventListener("click", (event) => {
        event.stopPropagation();
        toggle(box);
      });
      element.append(button);
    }
    element.addEventListener("click", () => choose(box));
    element.addEventListener("dblclick", () => folds && toggle(box));
    return element;
  }

  /* The box that is drawn for this one: itself, or the outermost folded one around it. */
  function shown(box) {
    let found = box;
    for (let at = box; at.parent >= 0;) {
      at = scene.boxes[at.parent];
      if (!at.open) found = at;
    }
    return found;
  }

  function drawLines() {
    const sheets = new Map(), users = new Map(), seen = new Set();
    for (const [from] of scene.lines) users.set(from, (users.get(from) || 0) + 1);
    for (const [from, to] of scene.lines) {
      const a = shown(scene.boxes[from]), b = shown(scene.boxes[to]);
      const key = a.number + " " + b.number;
      if (a === b || seen.has(key)) continue;
      seen.add(key);
      const x0 = a.X + a.W / 2, y0 = a.Y + a.H, x1 = b.X + b.W / 2, y1 = b.Y;
      const bend = Math.max(18, Math.abs(y1 - y0) * 0.4);
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", `M${x0},${y0} C${x0},${y0 + bend} ${x1},${y1 - bend} ${x1},${y1}`);
      if (users.get(from) > MANY) path.classList.add("many");
      path.dataset.from = a.number;
      path.dataset.to = b.number;
      if (!sheets.has(a.depth)) {
        const sheet = document.createElementNS("http://www.w3.org/2000/svg", "svg");
        sheet.style.zIndex = 4 * a.depth + 2;
        sheets.set(a.depth, sheet);
        world.append(sheet);
      }
      sheets.get(a.depth).append(path);
    }
  }

  function redraw() {
    measure(scene.root);
    world.textContent = "";
    for (const box of scene.boxes) box.element = null;
    if (scene.root.children) place(scene.root, 0, 0, 0);
    drawLines();
    mark();
  }

  function move() {
    world.style.transform = `translate(${camera.x}px, ${camera.y}px) scale(${camera.zoom})`;
  }

  /* All of the graph, or as much as can be read from the top on. */
  function fit(least = 0.03) {
    const width = stage.clientWidth, height = stage.clientHeight;
    const whole = Math.min(1, width / (scene.root.W + 40), height / (scene.root.H + 40));
    camera.zoom = Math.max(least, whole);
    camera.x = (width - scene.root.W * camera.zoom) / 2;
    camera.y = Math.max(10, (height - scene.root.H * camera.zoom) / 2);
    move();
  }

  function centre(box) {
    camera.zoom = Math.max(camera.zoom, 0.7);
    camera.x = stage.clientWidth / 2 - (box.X + box.W / 2) * camera.zoom;
    camera.y = stage.clientHeight / 2 - (box.Y + Math.min(box.H, 200) / 2) * camera.zoom;
    move();
  }

  /* -- what users do --------------------------------------------------------------------- */

  function toggle(box) {
    const x = box.X, y = box.Y;
    box.open = !box.open;
    redraw();
    camera.x += (x - box.X) * camera.zoom;
    camera.y += (y - box.Y) * camera.zoom;
    move();
  }

  function foldAll(open) {
    for (const box of scene.boxes) if (box.children) box.open = open;
    redraw();
    fit(READABLE);
  }

  function reveal(box) {
    for (let at = box; at.parent >= 0;) {
      at = scene.boxes[at.parent];
      at.open = true;
    }
    redraw();
    choose(box);
    centre(box);
  }

  function choose(box) {
    chosen = box;
    const panel = byId("details");
    panel.textContent = "";
    panel.append(make("h2", "", box.text[0]));
    const list = make("dl");
    for (const [name, value] of box.details) list.append(make("dt", "", name), make("dd", "", value));
    panel.append(list);
    neighbours(panel, "reads", scene.lines.filter((line) => line[1] === box.number).map((line) => line[0]));
    neighbours(panel, "read by", scene.lines.filter((line) => line[0] === box.number).map((line) => line[1]));
    mark();
  }

  function neighbours(panel, title, numbers) {
    if (!numbers.length) return;
    panel.append(make("dt", "", title));
    for (const number of numbers) {
      const button = make("button", "", scene.boxes[number].text[0]);
      button.addEventListener("click", () => reveal(scene.boxes[number]));
      panel.append(button);
    }
  }

  function mark() {
    const found = new Set(hits.map((box) => shown(box)));
    for (const box of scene.boxes) {
      if (!box.element) continue;
      box.element.classList.toggle("hit", found.has(box));
      box.element.classList.toggle("chosen", box === chosen);
    }
    const at = chosen && shown(chosen).number;
    for (const path of world.querySelectorAll("path")) {
      const hot = chosen && (Number(path.dataset.from) === at || Number(path.dataset.to) === at);
      path.classList.toggle("hot", Boolean(hot));
    }
    document.documentElement.dataset.hits = hits.length;
    document.documentElement.dataset.boxes = scene.boxes.length;
  }

  function find(text) {
    const wanted = text.trim().toLowerCase();
    const matches = (box) => [...box.text, ...box.details.flat()].some((t) => t.toLowerCase().includes(wanted));
    hits = wanted ? scene.boxes.filter(matches) : [];
    current = -1;
    byId("found").textContent = wanted ? `${hits.length} found` : "";
    mark();
  }

  function next() {
    if (!hits.length) return;
    current = (current + 1) % hits.length;
    byId("found").textContent = `${current + 1} of ${hits.length}`;
    reveal(hits[current]);
  }

  function show(each) {
    scene = each;
    chosen = null;
    byId("details").textContent = "";
    const totals = byId("totals");
    totals.textContent = "";
    for (const [name, value] of each.totals) {
      const pair = make("div");
      pair.append(make("dt", "", name), make("dd", "", value));
      totals.append(pair);
    }
    for (const button of byId("views").children) {
      button.classList.toggle("chosen", button.textContent === each.name);
    }
    redraw();
    find(byId("find").value);
    fit(READABLE);
  }

  /* -- start ----------------------------------------------------------------------------- */

  scenes.forEach(prepare);
  for (const each of scenes) {
    const button = make("button", "", each.name);
    button.addEventListener("click", () => show(each));
    byId("views").append(button);
    each.root.open = true;
    each.root.h = 0;
  }
  byId("find").addEventListener("input", (event) => find(event.target.value));
  byId("find").addEventListener("keydown", (event) => event.key === "Enter" && next());
  byId("fold").addEventListener("click", () => foldAll(false));
  byId("unfold").addEventListener("click", () => foldAll(true));
  byId("fit").addEventListener("click", () => fit());
  stage.addEventListener("wheel", (event) => {
    event.preventDefault();
    const zoom = Math.min(4, Math.max(0.03, camera.zoom * Math.exp(-event.deltaY * 0.0015)));
    const frame = stage.getBoundingClientRect();
    const x = event.clientX - frame.left, y = event.clientY - frame.top;
    camera.x = x - (x - camera.x) * zoom / camera.zoom;
    camera.y = y - (y - camera.y) * zoom / camera.zoom;
    camera.zoom = zoom;
    move();
  }, { passive: false });
  stage.addEventListener("pointermove", (event) => {
    if (!(event.buttons & 1)) return;
    camera.x += event.movementX;
    camera.y += event.movementY;
    move();
  });

  const asked = new URLSearchParams(location.hash.slice(1));
  show(scenes.find((each) => each.name === asked.get("view")) || scenes[0]);
  if (asked.has("open")) foldAll(asked.get("open") === "all");
  if (asked.has("find")) {
    byId("find").value = asked.get("find");
    find(asked.get("find"));
    next();
  }
  document.documentElement.dataset.ready = "yes";
})();
