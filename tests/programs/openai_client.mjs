// OpenAI's client for Node against a server with the models of tests/actors/models.py. Says "all is well" at the end.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI();
const script = (what) => ({ model: "Scripted", messages: [{ role: "user", content: JSON.stringify(what) }] });
const usage = { prompt_tokens: 3, completion_tokens: 2 };
const call = { id: "call_7", type: "function", function: { name: "add", arguments: '{"a":1}' } };
const tools = [{ type: "function", function: { name: "add", parameters: { type: "object" } } }];

const models = await client.models.list();
assert.ok(models.data.some((model) => model.id === "Scripted"));

const whole = await client.chat.completions.create(script({ parts: ["one ", "two"], result: { usage } }));
assert.equal(whole.choices[0].message.content, "one two");
assert.equal(whole.usage.total_tokens, 5);

const stream = await client.chat.completions.create({
  ...script({ parts: ["one ", "two"], result: { usage, finish_reason: "length" } }),
  stream: true,
  stream_options: { include_usage: true },
});
const chunks = [];
for await (const chunk of stream) chunks.push(chunk);
assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), "one two");
assert.equal(chunks.at(-2).choices[0].finish_reason, "length");
assert.equal(chunks.at(-1).usage.total_tokens, 5);

const joined = await client.chat.completions
  .stream({ ...script({ parts: [{ tool_calls: [call] }] }), tools })
  .finalChatCompletion();
assert.deepEqual(joined.choices[0].message.tool_calls[0].function.arguments, '{"a":1}');
assert.equal(joined.choices[0].finish_reason, "tool_calls");

const text = JSON.stringify({ parts: ["one ", "two"], result: { usage } });
const response = await client.responses.create({ model: "Scripted", input: text });
assert.equal(response.output_text, "one two");
const events = client.responses.stream({ model: "Scripted", input: text });
const kinds = [];
for await (const event of events) kinds.push(event.type);
assert.equal(kinds[0], "response.created");
assert.equal(kinds.at(-1), "response.completed");
assert.equal((await events.finalResponse()).usage.total_tokens, 5);

const completion = await client.completions.create({ model: "Plain", prompt: ["a", "b"] });
assert.deepEqual(completion.choices.map((choice) => choice.text), ["a!", "b!"]);

const vectors = await client.embeddings.create({ model: "Plain", input: ["a", "bb"] });
assert.deepEqual(vectors.data.map((each) => [...each.embedding]), [[1, 0.5, -1], [2, 0.5, -1]]);

const refused = await client.chat.completions.create({ ...script({}), n: 2 }).catch((error) => error);
assert.ok(refused instanceof OpenAI.BadRequestError);
assert.equal(refused.param, "n");
const failed = await client.chat.completions.create(script({ fail: "on purpose" })).catch((error) => error);
assert.ok(failed instanceof OpenAI.InternalServerError);

const endless = await client.chat.completions.create({ ...script({ forever: true }), stream: true });
for await (const chunk of endless) break;
console.log("all is well");
