// Form fields from a JSON Schema: what the recipe's schema has is what can be filled in.
import { useId } from "react";

export interface Schema {
  type?: string; title?: string; description?: string; default?: unknown; enum?: unknown[]; const?: unknown;
  minimum?: number; maximum?: number; exclusiveMinimum?: number; $ref?: string; anyOf?: Schema[]; oneOf?: Schema[];
  properties?: Record<string, Schema>; discriminator?: { propertyName: string; mapping: Record<string, string> };
  $defs?: Record<string, Schema>; additionalProperties?: unknown;
}
export interface Complaint { path: string; message: string }
type Values = Record<string, unknown>;
interface Props { schema: Schema; root: Schema; path: string; value: unknown; onChange: (value: unknown) => void; complaints: Complaint[] }

export function resolve(schema: Schema, root: Schema): Schema {
  return schema.$ref ? { ...root.$defs?.[schema.$ref.split("/").at(-1)!], ...(schema.description ? { description: schema.description } : {}) } : schema;
}

function named(path: string): string {
  return path.split(".").at(-1)!.replaceAll("_", " ");
}

export function Field({ schema: given, root, path, value, onChange, complaints }: Props) {
  const schema = resolve(given, root);
  if (schema.discriminator) return <Kinds schema={schema} root={root} path={path} value={value} onChange={onChange} complaints={complaints} />;
  if (schema.properties) return <Section schema={schema} root={root} path={path} value={value} onChange={onChange} complaints={complaints} />;
  return <Plain schema={schema} root={root} path={path} value={value} onChange={onChange} complaints={complaints} />;
}

// One of several kinds, told apart by a field; each kind has fields of its own.
function Kinds({ schema, root, path, value, onChange, complaints }: Props) {
  const { propertyName, mapping } = schema.discriminator!;
  const values = (value ?? {}) as Values;
  const first = Object.keys(mapping)[0]!;
  const kind = String(values[propertyName] ?? first);
  const chosen = resolve({ $ref: mapping[kind] ?? mapping[first] }, root);
  const id = useId();
  return (
    <>
      <div className="field">
        <label htmlFor={id}>{path.includes(".") ? named(path) : named(`${path}.${propertyName}`)}</label>
        <select id={id} value={kind} onChange={(event) => onChange({ [propertyName]: event.target.value })}>
          {Object.keys(mapping).map((name) => <option key={name}>{name}</option>)}
        </select>
        <Said path={`${path}.${propertyName}`} complaints={complaints} hint={chosen.description} />
      </div>
      <Section schema={chosen} root={root} path={path} value={{ ...values, [propertyName]: kind }} onChange={onChange} complaints={complaints} skip={propertyName} />
    </>
  );
}

function Section({ schema, root, path, value, onChange, complaints, skip }: Props & { skip?: string }) {
  const values = (value ?? {}) as Values;
  const whole = complaints.filter((item) => item.path === path);
  return (
    <>
      {whole.map((item) => <p key={item.message} className="wrong" role="alert">{item.message}</p>)}
      {Object.entries(schema.properties!).filter(([name]) => name !== skip).map(([name, part]) => (
        <Field key={name} schema={part} root={root} path={path ? `${path}.${name}` : name} value={values[name]} complaints={complaints}
          onChange={(next) => {
            const { [name]: _, ...rest } = values;
            onChange(next === undefined ? rest : { ...rest, [name]: next });
          }} />
      ))}
    </>
  );
}

function Plain({ schema, path, value, onChange, complaints }: Props) {
  const id = useId();
  const wrong = complaints.some((item) => item.path === path || item.path.startsWith(`${path}.`));
  const kind = kindOf(schema);
  const shared = { id, "aria-invalid": wrong || undefined, "aria-describedby": `${id}-said` };
  const usual = schema.default === undefined || schema.default === null ? "" : text(schema.default);
  return (
    <div className="field">
      <label htmlFor={id}>{named(path)}</label>
      {kind === "boolean" ? (
        <input {...shared} type="checkbox" checked={Boolean(value ?? schema.default)} onChange={(event) => onChange(event.target.checked)} />
      ) : kind === "choice" ? (
        <select {...shared} value={String(value ?? "")} onChange={(event) => onChange(event.target.value || undefined)}>
          <option value="">{usual ? `usual: ${usual}` : "usual"}</option>
          {options(schema).map((name) => <option key={name}>{name}</option>)}
        </select>
      ) : (
        <input {...shared} inputMode={kind === "number" ? "decimal" : undefined} value={value === undefined ? "" : text(value)} placeholder={usual}
          onChange={(event) => onChange(parsed(event.target.value, kind))} />
      )}
      <Said id={`${id}-said`} path={path} complaints={complaints} hint={schema.description} below />
    </div>
  );
}

function Said({ id, path, complaints, hint, below }: { id?: string; path: string; complaints: Complaint[]; hint?: string; below?: boolean }) {
  const mine = complaints.filter((item) => item.path === path || (below && item.path.startsWith(`${path}.`)));
  return (
    <div id={id} className="said">
      {mine.map((item) => <p key={item.message} className="wrong" role="alert">{item.message}</p>)}
      {hint && <p className="hint">{hint}</p>}
    </div>
  );
}

function kindOf(schema: Schema): "boolean" | "choice" | "number" | "text" | "json" {
  const types = schema.anyOf ? schema.anyOf.map((option) => option.type) : [schema.type];
  if (options(schema).length) return "choice";
  if (types.includes("boolean")) return "boolean";
  if (types.includes("integer") || types.includes("number")) return "number";
  if (types.includes("string")) return "text";
  return "json";
}

function options(schema: Schema): string[] {
  return [schema, ...(schema.anyOf ?? [])].flatMap((part) => part.enum ?? (part.const === undefined ? [] : [part.const])).map(String);
}

function text(value: unknown): string {
  return typeof value === "object" && value !== null ? JSON.stringify(value) : String(value);
}

function parsed(said: string, kind: string): unknown {
  if (said.trim() === "") return undefined;
  if (kind === "number" && said.trim() !== "" && Number.isFinite(Number(said))) return Number(said);
  if (kind === "text") return said;
  try {
    return JSON.parse(said) as unknown;
  } catch {
    return said;
  }
}
