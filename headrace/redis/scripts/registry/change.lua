-- Change registered models, all of them or none. A model's value is its generation, a space, and msgpack.
-- KEYS: none. ARGV: 1 SHA-256 of the models file that these changes apply ('': they apply none), 2 its models and their
--       versions (JSON), 3 how many changes the log keeps, 4 an id of this call, then per model: name, the generation that
--       the change was made from (0: it did not exist), its new value ('': it is removed), the entry of the log (JSON).
-- Returns {generation of the registry} if all were written, or were by an earlier call that is now repeated; else {-1, name
-- of a model that was changed meanwhile, its value or ''}.
local changed = {}
for i = 5, #ARGV, 4 do
  local name, expected, new = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local old = call('HGET', keys.MODELS, name) or ''
  if old ~= new then
    if (string.match(old, '^(%d+) ') or '0') ~= expected then return {-1, name, old} end
    changed[#changed + 1] = i
  end
end
if ARGV[1] ~= '' then call('HSET', keys.REGISTRY, 'file', ARGV[1], 'declared', ARGV[2]) end
if #changed == 0 then return {tonumber(call('HGET', keys.REGISTRY, 'generation') or '0')} end
for _, i in ipairs(changed) do
  if ARGV[i + 2] == '' then
    call('HDEL', keys.MODELS, ARGV[i])
    call('UNLINK', keys.series .. ARGV[i])
  else
    call('HSET', keys.MODELS, ARGV[i], ARGV[i + 2])
  end
  call('XADD', keys.MODEL_LOG, 'MAXLEN', '~', ARGV[3], '*', 'change', ARGV[i + 3])
end
call('HSET', keys.REGISTRY, 'change', ARGV[4])
local generation = call('HINCRBY', keys.REGISTRY, 'generation', 1)
call('PUBLISH', keys.MODEL_CHANGES, generation)
return {generation}
