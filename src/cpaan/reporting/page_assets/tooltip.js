// What is shown when a point is pointed at, with the mouse, a finger or the arrow keys.

const REACH = 24;

function showTooltip(x, y, content) {
  const box = document.getElementById("tooltip");
  box.replaceChildren(
    element("div", { class: "title" }, named(content.title)),
    ...content.lines.map((line) => element("div", {}, Array.isArray(line) ? [line[0], named(line[1])] : named(line))),
    ...(content.pictures && content.pictures.length
      ? [
          element(
            "div",
            { class: "pictures" },
            content.pictures.map((source) => element("img", { src: source, alt: "" })),
          ),
          element("div", { class: "quiet" }, content.note || ""),
        ]
      : []),
  );
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const left = x + 16 + width > innerWidth ? x - 16 - width : x + 16;
  const top = y + 16 + height > innerHeight ? y - 16 - height : y + 16;
  box.style.left = `${Math.max(4, left)}px`;
  box.style.top = `${Math.max(4, top)}px`;
}

function hideTooltip() {
  document.getElementById("tooltip").hidden = true;
}

function spoken(content) {
  return [content.title, ...content.lines.map((line) => (Array.isArray(line) ? line.join("") : line))].join(". ");
}

// Makes the points of a figure answer. Points have x and y in the figure's units; `describe` says what one is, `reach`
// is how far from a point one may point. Left and right go from point to point, up and down from group to group.
function answering(svg, points, describe, reach = REACH) {
  const ring = drawn("circle", { class: "ring", r: 8, visibility: "hidden" });
  svg.append(ring);
  let current = -1;

  function select(index) {
    current = index;
    ring.setAttribute("visibility", index < 0 ? "hidden" : "visible");
    if (index < 0) {
      hideTooltip();
      return;
    }
    const point = points[index];
    ring.setAttribute("cx", point.x);
    ring.setAttribute("cy", point.y);
  }

  function place(index) {
    const box = svg.getBoundingClientRect();
    showTooltip(box.left + points[index].x, box.top + points[index].y, describe(points[index]));
  }

  function nearest(event) {
    const box = svg.getBoundingClientRect();
    const x = event.clientX - box.left,
      y = event.clientY - box.top;
    let best = -1,
      least = reach * reach;
    points.forEach((point, index) => {
      const squared = (point.x - x) ** 2 + (point.y - y) ** 2;
      if (squared < least) {
        best = index;
        least = squared;
      }
    });
    return best;
  }

  function step(key) {
    if (current < 0) return 0;
    const n = points.length;
    if (key === "ArrowRight") return (current + 1) % n;
    if (key === "ArrowLeft") return (current + n - 1) % n;
    const groups = [...new Set(points.map((point) => point.group))];
    const forward = key === "ArrowDown" ? 1 : groups.length - 1;
    const wanted = groups[(groups.indexOf(points[current].group) + forward) % groups.length];
    return points.findIndex((point) => point.group === wanted);
  }

  svg.addEventListener("pointermove", (event) => {
    const index = nearest(event);
    select(index);
    if (index >= 0) place(index);
  });
  svg.addEventListener("pointerdown", (event) => {
    const index = nearest(event);
    select(index);
    if (index >= 0) place(index);
  });
  svg.addEventListener("pointerleave", () => select(-1));
  svg.addEventListener("blur", () => select(-1));
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      select(-1);
      return;
    }
    if (!event.key.startsWith("Arrow") || !points.length) return;
    event.preventDefault();
    select(step(event.key));
    place(current);
    announce(spoken(describe(points[current])));
  });
  return svg;
}

function plot(width, height, label) {
  return drawn("svg", {
    class: "plot",
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    tabindex: 0,
    role: "application",
    "aria-label": `${label}. Arrow keys go from point to point; Escape ends.`,
  });
}
