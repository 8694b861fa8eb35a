// Runs the calls of OpenAI's SDK for Node and of the AI SDK: `node clients.mjs URL`.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import assert from "node:assert";
import OpenAI from "openai";
import { z } from "zod";

const [url] = process.argv.slice(2);
const model = "docs";
const text = "Where is Paris?";
const city = z.object({ name: z.enum(["Paris", "Rome"]), size: z.number().int().min(1).max(9) });
const schema = {
  type: "object",
  properties: { name: { enum: ["Paris", "Rome"] }, size: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["name", "size"],
  additionalProperties: false,
};
let count = 0;

async function call(name, run) {
  await run();
  count += 1;
  console.log(name);
}

const client = new OpenAI({ baseURL: url, apiKey: "none" });
const messages = [{ role: "user", content: text }];
const tools = [{ type: "function", function: { name: "city", parameters: schema } }];
await call("openai plain", async () => {
  const answer = await client.chat.completions.create({ model, messages });
  assert(answer.choices[0].message.content);
});
await call("openai streamed", async () => {
  const stream = client.chat.completions.stream({ model, messages });
  assert(await stream.finalContent());
});
await call("openai structured", async () => {
  const response_format = { type: "json_schema", json_schema: { name: "city", schema, strict: true } };
  const answer = await client.chat.completions.create({ model, messages, response_format });
  city.parse(JSON.parse(answer.choices[0].message.content));
});
await call("openai called", async () => {
  const tool_choice = { type: "function", function: { name: "city" } };
  const answer = await client.chat.completions.create({ model, messages, tools, tool_choice });
  city.parse(JSON.parse(answer.choices[0].message.tool_calls[0].function.arguments));
});

const openai = createOpenAI({ baseURL: url, apiKey: "none" });
const compatible = createOpenAICompatible({
  name: "headrace", baseURL: url, apiKey: "none", supportsStructuredOutputs: true,
});
for (const [provider, chosen] of [
  ["responses", openai(model)],
  ["chat", openai.chat(model)],
  ["compatible", compatible(model)],
]) {
  await call(`${provider} two turns`, async () => {
    const first = await generateText({ model: chosen, prompt: text });
    const turns = [{ role: "user", content: text }, ...first.response.messages];
    const second = await generateText({
      model: chosen, messages: [...turns, { role: "user", content: "And Rome?" }],
    });
    assert(second.text);
  });
  await call(`${provider} streamed`, async () => {
    const { textStream } = streamText({ model: chosen, prompt: text });
    let whole = "";
    for await (const part of textStream) whole += part;
    assert(whole);
  });
  await call(`${provider} structured`, async () => {
    const { object } = await generateObject({ model: chosen, schema: city, prompt: text });
    city.parse(object);
  });
  await call(`${provider} called`, async () => {
    const { toolCalls } = await generateText({
      model: chosen, prompt: text, toolChoice: { type: "tool", toolName: "city" },
      tools: { city: tool({ description: "Finds a city.", inputSchema: city }) },
    });
    city.parse(toolCalls[0].input);
  });
}
console.log(`${count} calls`);
