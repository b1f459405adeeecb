/** Lines over time, drawn by uPlot, which loads when the first chart is shown. */
import { html, useEffect, useRef, useState } from "../lib.js";
import { age, rate, time } from "../format.js";
import { isDark, timeZone } from "../state.js";

const HEIGHT = 200;
const FORMATS = { age, rate };
const DAY_SECONDS = 86400;
let library = null;

async function load() {
  const href = new URL("../../vendor/uplot.css", import.meta.url).href;
  document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href }));
  return (await import("../../vendor/uplot.js")).default;
}

/** The color behind a custom property, as the theme resolves it. */
function color(name) {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = `var(--${name})`;
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

/** The points without a neighbor, which no line shows. */
const listLonely = ({ data }, number) =>
  data[number].flatMap((value, i, all) => (value != null && all[i - 1] == null && all[i + 1] == null ? i : []));

function drawLine({ color: name, is_filled: isFilled, is_dashed: isDashed }) {
  const stroke = color(name);
  const fill = isFilled ? stroke.replace(")", " / 10%)").replaceAll(",", "") : undefined;
  return { stroke, fill, width: 1.5, dash: isDashed && [5, 4], points: { fill: stroke, size: 5, show: true, filter: listLonely } };
}

function draw(UPlot, place, data, series, { format, onPoint }) {
  const axis = { stroke: color("muted"), grid: { stroke: color("border"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const zone = timeZone.peek() === "utc" ? "UTC" : undefined;
  const isLong = data[0].at(-1) - data[0][0] > 2 * DAY_SECONDS;
  const day = isLong ? { month: "short", day: "numeric" } : { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  const tickFormat = new Intl.DateTimeFormat("en-US", { ...day, timeZone: zone });
  return new UPlot({
    width: place.clientWidth, height: HEIGHT, legend: { show: false },
    cursor: { y: false, points: { size: 7 }, drag: { x: false } },
    tzDate: (seconds) => (zone ? UPlot.tzDate(new Date(seconds * 1000), "Etc/UTC") : new Date(seconds * 1000)),
    scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [
      { ...axis, size: 26, space: 70, values: (_, ticks) => ticks.map((tick) => tickFormat.format(tick * 1000)) },
      { ...axis, size: 58, values: (_, ticks) => ticks.map(format) }],
    series: [{}, ...series.map(drawLine)],
    hooks: { setCursor: [({ cursor }) => onPoint(cursor.idx ?? null)] },
  }, data, place);
}

/**
 * A chart of points, which have a time and a value for each of the `lines` of the server. With
 * `step_seconds`, values are counts of steps. With `is_partial_last`, the last point is left out:
 * its time is not over, so it would look like a fall.
 */
export function Chart({ chart: { label, unit, lines }, points: all, step_seconds: step = 1, is_partial_last: isPartialLast }) {
  const points = isPartialLast ? all.slice(0, -1) : all;
  const at = points.map((point) => point.at);
  const format = FORMATS[unit];
  const series = lines.map((line) => ({ ...line, values: points.map(({ [line.key]: value }) => (value == null || unit !== "rate" ? value : value / step)) }));
  const place = useRef(null);
  const plot = useRef(null);
  const [index, setIndex] = useState(null);
  const data = [at.map((each) => Date.parse(each) / 1000), ...series.map(({ values }) => values)];
  const look = [isDark.value, timeZone.value, data[0].at(-1) - data[0][0] > 2 * DAY_SECONDS, ...series.map((each) => each.label)].join();
  useEffect(() => {
    let isGone = false;
    const observer = new ResizeObserver(() => place.current && plot.current?.setSize({ width: place.current.clientWidth, height: HEIGHT }));
    (library ??= load()).then((UPlot) => {
      // A page that has just been left has no place any more.
      if (isGone || !place.current) return;
      plot.current = draw(UPlot, place.current, data, series, { format, onPoint: setIndex });
      observer.observe(place.current);
    });
    return () => {
      isGone = true;
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [look]);
  useEffect(() => plot.current?.setData(data), [all]);
  const text = ({ values }, row) => (values[row] == null ? "–" : format(values[row]));
  const shown = index ?? at.length - 1;
  return html`<figure class="chart">
    <figcaption class="chart-legend">${series.map((each) => html`<span key=${each.label}>
      <i style=${{ "--line": `var(--${each.color})` }} data-dash=${each.is_dashed} />${each.label} <b>${text(each, shown)}</b></span>`)}
      <span class="end">${time(at[shown], { seconds: false })}</span></figcaption>
    <div class="chart-plot" ref=${place} role="img" aria-label=${label} />
    <details><summary>Show as a table</summary><div class="table-wrap" tabindex="0" role="group" aria-label=${label}><table class="table">
      <thead><tr><th scope="col">Time</th>${series.map((each) => html`<th scope="col" data-align="right">${each.label}</th>`)}</tr></thead>
      <tbody>${at.map((each, row) => html`<tr key=${each}><td>${time(each, { seconds: false })}</td>
        ${series.map((line) => html`<td data-align="right">${text(line, row)}</td>`)}</tr>`).reverse()}</tbody></table></div></details>
  </figure>`;
}
