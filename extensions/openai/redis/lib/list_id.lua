-- Lists of ids in order: that of all API keys, and that of one.
-- See extensions/openai/batches/lists.py. An empty key has no list of its own.
local function lists_of(all, of, key) return key == '' and {all} or {all, of .. key} end

-- Reads them as the type that they should have, so that a wrong type fails before any write.
local function check_lists(lists) for _, list in ipairs(lists) do redis.call('ZCARD', list) end end

-- Adds an id. Of the oldest ids those without a record are removed: a key that never lists leaves no more than expire.
local function list_id(lists, id, record)
  for _, list in ipairs(lists) do
    for _, old in ipairs(redis.call('ZRANGE', list, 0, 1)) do
      if redis.call('EXISTS', record .. old) == 0 then redis.call('ZREM', list, old) end
    end
    redis.call('ZADD', list, 0, id)
    redis.call('EXPIRE', list, keys.FILES_TTL_S)
  end
end
