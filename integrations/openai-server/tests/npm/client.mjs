// Asks a server in the ways of the official SDK; writes what it got as JSON.
import OpenAI from "openai";
import { readFileSync } from "node:fs";

const { messages } = JSON.parse(readFileSync(0, "utf8"));
const client = new OpenAI({ baseURL: process.argv[2], apiKey: "not-needed", maxRetries: 0 });
const model = "small";
const found = {};

const short = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content: "Hello" }],
});
found.short = short.choices[0].message.content;

found.streamed = "";
found.thoughts = 0;
const stream = await client.chat.completions.create({ model, messages, stream: true });
for await (const part of stream) {
  found.streamed += part.choices[0]?.delta?.content ?? "";
  found.thoughts += part.choices[0]?.delta?.reasoning_content ? 1 : 0;
}

const { data: long, response } = await client.chat.completions
  .create({ model, messages })
  .withResponse();
found.long = long.choices[0].message.content;
found.memory = long.memagent.memory;
found.header = response.headers.get("x-memagent-memory");

const again = { model, messages: [...messages, { role: "user", content: "When?" }] };
const runner = client.chat.completions.stream({ ...again, memagent: { memory: found.memory } });
found.parsed = await runner.finalContent();

const made = await client.responses.create({ model, input: messages });
found.response = made.output_text;

try {
  await client.chat.completions.create({ model: "large", messages });
} catch (error) {
  found.missing = error.status;
}

try {
  await client.responses.create({ model, input: "And?", previous_response_id: made.id });
} catch (error) {
  found.stored = error.status;
}

const last = await client.responses.create({
  model,
  input: [{ role: "user", content: "Hello" }, ...made.output, { role: "user", content: "And?" }],
});
found.last = last.output_text;
process.stdout.write(JSON.stringify(found));
