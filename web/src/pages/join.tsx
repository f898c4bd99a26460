// For volunteers: one command, the same as a QR code, and what it will use.
import { useState } from "react";
import type { PageProps } from "../app";
import { Card, Choice, Copy, Failure, Loading, useAnswer } from "../parts";

interface Answer { name: string; command: string; install: string; qr_svg: string; uses: string[] }
const SYSTEMS = [["linux", "Linux"], ["mac", "macOS"], ["windows", "Windows"]] as const;
const PREPARE: Record<string, (install: string) => string> = {
  linux: (install) => `python3 -m venv ~/shoal && . ~/shoal/bin/activate && ${install}`,
  mac: (install) => `python3 -m venv ~/shoal && . ~/shoal/bin/activate && ${install}`,
  windows: (install) => `py -m venv %USERPROFILE%\\shoal && %USERPROFILE%\\shoal\\Scripts\\activate && ${install}`,
};

export function JoinPage({ picture, run }: PageProps) {
  const [system, setSystem] = useState(() => (/Win/.test(navigator.userAgent) ? "windows" : /Mac/.test(navigator.userAgent) ? "mac" : "linux"));
  const allowed = picture.scope !== "view";
  const { answer, error, retry } = useAnswer<Answer>(allowed ? `/runs/${run}/invitation` : null);
  if (!allowed) return <><div className="title"><h1>Join</h1></div><Card><p>Tickets are given out with a token of scope operate. Ask the organiser for one.</p></Card></>;
  if (error != null && !answer) return <Failure error={error} retry={retry} page="Join" />;
  if (!answer) return <Loading what="the invitation" />;
  const prepare = PREPARE[system]!(answer.install);
  return (
    <>
      <div className="title"><h1>Join {answer.name}</h1><p>Lend a machine to this run. Two lines are all it takes.</p></div>
      <div className="grid two">
        <Card title="On this machine" aside={<Choice name="System" value={system} options={SYSTEMS} onChange={setSystem} />}>
          <h3>Once</h3>
          <pre tabIndex={0} aria-label="How to install">{prepare}</pre>
          <Copy text={prepare} label="Copy" />
          <h3>Then</h3>
          <pre tabIndex={0} aria-label="How to join">{answer.command}</pre>
          <Copy text={answer.command} label="Copy" />
          <p className="hint">The ticket in it admits nodes to this run: hand it to those who may join.</p>
        </Card>
        <Card title="On another one">
          <img className="qr" alt="QR code of the command to join" src={`data:image/svg+xml;base64,${btoa(answer.qr_svg)}`} />
          <h3>What it will use</h3>
          <ul>{answer.uses.map((line) => <li key={line}>{line}</li>)}</ul>
        </Card>
      </div>
    </>
  );
}
