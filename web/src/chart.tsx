// Lines over a common axis, drawn by uPlot in the page's colours.
import { useEffect, useRef } from "react";
import uPlot from "uplot";

export interface Series { name: string; x: number[]; y: (number | null)[]; tone: number; dashed?: boolean }

const HEIGHT_PX = 280;
const COLOURS = 6;
// Ticks where everything is counted: there is no round 2.5.
const WHOLE = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();

function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// uPlot wants one axis for all: the union of the series' own.
function aligned(series: Series[]): uPlot.AlignedData {
  const xs = [...new Set(series.flatMap((item) => item.x))].sort((a, b) => a - b);
  const place = new Map(xs.map((x, index) => [x, index]));
  const columns = series.map((item) => {
    const column: (number | null | undefined)[] = new Array(xs.length).fill(undefined);
    item.x.forEach((x, index) => (column[place.get(x)!] = item.y[index]));
    return column;
  });
  return [xs, ...columns] as uPlot.AlignedData;
}

export function Chart({ series, xName, yName, xFormat, label }:
  { series: Series[]; xName: string; yName: string; xFormat?: (value: number) => string; label: string }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shape = series.map((item) => `${item.name}:${item.tone}`).join("|") + xName;
  useEffect(() => {
    const target = box.current!;
    const make = () => {
      plot.current?.destroy();
      const text = colour("--text-soft");
      const line = colour("--line");
      const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui" };
      const counted = series.every((item) => item.x.every(Number.isInteger));
      plot.current = new uPlot({
        width: target.clientWidth, height: HEIGHT_PX,
        scales: { x: { time: false } },
        cursor: { points: { size: 7 } },
        legend: { live: false },
        axes: [
          { ...axis, label: xName, labelSize: 18, ...(counted ? { incrs: WHOLE } : {}), ...(xFormat ? { values: (_, ticks) => ticks.map(xFormat) } : {}) },
          { ...axis, label: yName, labelSize: 18, size: 56 },
        ],
        series: [{}, ...series.map((item) => ({
          label: item.name, stroke: colour(`--series-${item.tone % COLOURS}`), width: 2, spanGaps: true,
          dash: item.dashed ? [6, 4] : [], points: { show: item.x.length < 40 },
        }))],
      }, aligned(series), target);
    };
    make();
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: target.clientWidth, height: HEIGHT_PX }));
    resized.observe(target);
    const themed = new MutationObserver(make);
    themed.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => {
      resized.disconnect();
      themed.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
    // A new shape is a new plot; new points are set below.
  }, [shape]);
  useEffect(() => plot.current?.setData(aligned(series)), [series]);
  return <div className="chart" ref={box} role="img" aria-label={label} />;
}
